import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Usage: RoundTrip BOOTSTRAP TOPIC COUNT PAUSE_MS CODEC,... PROTOCOL,...
 *
 * For each codec, an idempotent producer (the default) writes COUNT records, PAUSE_MS between hundreds of them. For each group
 * protocol, a consumer in a group of its own reads all of them: each once, with its key, header and timestamp, and commits. Says
 * "QUARTER" when a quarter of the first codec's records was sent, so that a test can do harm then.
 */
public class RoundTrip {
    private static final long LIMIT_MS = 90_000;
    private static final long FIRST_TIMESTAMP_MS = System.currentTimeMillis();

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0], topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);
        long pauseMs = Long.parseLong(arguments[3]);
        String[] codecs = arguments[4].split(",");
        for (String codec : codecs) {
            write(bootstrap, topic, count, pauseMs, codec, codec.equals(codecs[0]));
            System.out.println("WRITTEN " + codec);
        }
        for (String protocol : arguments[5].split(",")) {
            read(bootstrap, topic, count * codecs.length, protocol);
            System.out.println("READ " + protocol);
        }
    }

    static void write(String bootstrap, String topic, int count, long pauseMs, String codec, boolean tells) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("compression.type", codec);
        settings.put("request.timeout.ms", "10000");
        settings.put("delivery.timeout.ms", String.valueOf(LIMIT_MS));
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        var bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes)) {
            for (int number = 0; number < count; number++) {
                byte[] name = bytes(String.valueOf(number));
                var record = new ProducerRecord<>(topic, null, FIRST_TIMESTAMP_MS + number, name, bytes(codec + number));
                record.headers().add("number", name);
                sent.add(producer.send(record));
                if (tells && number == count / 4) {
                    System.out.println("QUARTER");
                }
                if (number % 100 == 0) {
                    Thread.sleep(pauseMs);
                }
            }
        }
        for (Future<RecordMetadata> one : sent) {
            one.get();
        }
    }

    static void read(String bootstrap, String topic, int count, String protocol) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", topic + "-" + protocol);
        settings.put("group.protocol", protocol);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        Map<String, Integer> seen = new HashMap<>();
        var bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            consumer.subscribe(List.of(topic));
            long deadlineMs = System.currentTimeMillis() + LIMIT_MS;
            while (seen.size() < count && System.currentTimeMillis() < deadlineMs) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    check(record);
                    seen.merge(text(record.value()), 1, Integer::sum);
                }
            }
            consumer.commitSync();
            for (TopicPartition place : consumer.assignment()) {
                var committed = consumer.committed(java.util.Set.of(place)).get(place);
                if (committed == null || committed.offset() != consumer.position(place)) {
                    throw new AssertionError(place + ": committed " + committed + " at " + consumer.position(place));
                }
            }
        }
        long again = seen.values().stream().filter(times -> times > 1).count();
        if (seen.size() != count || again > 0) {
            throw new AssertionError(protocol + ": read " + seen.size() + " of " + count + ", " + again + " of them more than once");
        }
    }

    static void check(ConsumerRecord<byte[], byte[]> record) {
        String number = text(record.key());
        boolean isWhole = text(record.value()).endsWith(number)
            && text(record.headers().lastHeader("number").value()).equals(number)
            && record.timestamp() == FIRST_TIMESTAMP_MS + Long.parseLong(number);
        if (!isWhole) {
            throw new AssertionError("not as it was written: " + record);
        }
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
