// A producer with SASL, where there is none: prints how it ends, and after how many milliseconds.

import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class Refusals {
    interface Attempt {
        void run(KafkaProducer<String, String> producer) throws Exception;
    }

    public static void main(String[] arguments) {
        Properties sasl = properties(arguments[0]);
        sasl.put("security.protocol", "SASL_PLAINTEXT");
        sasl.put("sasl.mechanism", "PLAIN");
        sasl.put("sasl.jaas.config", "org.apache.kafka.common.security.plain.PlainLoginModule required"
            + " username=\"u\" password=\"p\";");
        tell("SASL", sasl, producer -> producer.send(new ProducerRecord<>("t", "v")).get());
    }

    static Properties properties(String bootstrap) {
        Properties made = new Properties();
        made.put("bootstrap.servers", bootstrap);
        made.put("key.serializer", StringSerializer.class.getName());
        made.put("value.serializer", StringSerializer.class.getName());
        return made;
    }

    static void tell(String what, Properties properties, Attempt attempt) {
        long began = System.currentTimeMillis();
        String ended = "it succeeded";
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties)) {
            attempt.run(producer);
        } catch (Exception error) {
            ended = error.toString();
        }
        System.out.println(what + " " + (System.currentTimeMillis() - began) + " " + ended);
    }
}
