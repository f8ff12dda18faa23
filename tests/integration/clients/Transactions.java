// Transactions of a producer: one is committed, one aborted, each with records and an offset, and then a second producer fences the
// first. Prints one line for each step.

import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

public class Transactions {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0], topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);
        KafkaProducer<String, String> first = producer(bootstrap, topic);
        for (int number = 0; number < count; number++) {
            boolean commit = number % 2 == 0;
            first.beginTransaction();
            for (int partition = 0; partition < 3; partition++) {
                first.send(new ProducerRecord<>(topic, partition, null, (commit ? "kept-" : "lost-") + number));
            }
            Map<TopicPartition, OffsetAndMetadata> offsets =
                Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(number));
            first.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata("g-" + topic));
            if (commit) {
                first.commitTransaction();
            } else {
                first.abortTransaction();
            }
        }
        System.out.println("ENDED " + count);
        first.beginTransaction();
        first.send(new ProducerRecord<>(topic, 0, null, "lost-fenced")).get();
        try (KafkaProducer<String, String> second = producer(bootstrap, topic)) {
            try {
                first.commitTransaction();
                System.out.println("FENCED no");
            } catch (Exception error) {
                System.out.println("FENCED " + error.getClass().getSimpleName());
            }
        }
        first.close(java.time.Duration.ofSeconds(2));
    }

    static KafkaProducer<String, String> producer(String bootstrap, String topic) {
        Properties made = new Properties();
        made.put("bootstrap.servers", bootstrap);
        made.put("transactional.id", "tx-" + topic);
        made.put("key.serializer", StringSerializer.class.getName());
        made.put("value.serializer", StringSerializer.class.getName());
        KafkaProducer<String, String> producer = new KafkaProducer<>(made);
        producer.initTransactions();
        return producer;
    }
}
