import java.io.FileReader;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.AuthenticationException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Usage: Logins TOPIC FILE.properties...
 *
 * With the settings of each file, a producer writes the name of the file as a record, and a consumer reads it in a group of its own.
 * Where the name begins with "wrong", the login must fail. Where the settings have "seconds", the producer writes 0, 1, 2 and so on
 * for that time instead, and tells how many.
 */
public class Logins {
    private static final long LIMIT_MS = 30_000;

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[0];
        for (String file : List.of(arguments).subList(1, arguments.length)) {
            String name = Path.of(file).getFileName().toString().replace(".properties", "");
            Properties settings = new Properties();
            try (FileReader reader = new FileReader(file)) {
                settings.load(reader);
            }
            if (settings.containsKey("seconds")) {
                steady(settings, topic, Long.parseLong((String) settings.remove("seconds")));
            } else if (name.startsWith("wrong")) {
                refused(settings, name);
                System.out.println("REFUSED " + name);
            } else {
                worked(settings, topic, name);
                System.out.println("WORKED " + name);
            }
        }
        System.exit(0);
    }

    static void worked(Properties settings, String topic, String name) throws Exception {
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>(topic, name)).get();
        }
        settings.put("group.id", topic + "-" + name);
        settings.put("auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            long deadline = System.currentTimeMillis() + LIMIT_MS;
            while (System.currentTimeMillis() < deadline) {
                for (var record : consumer.poll(Duration.ofMillis(500))) {
                    if (record.value().equals(name)) {
                        return;
                    }
                }
            }
        }
        throw new IllegalStateException(name + ": the record was not read");
    }

    static void steady(Properties settings, String topic, long seconds) throws Exception {
        int count = 0;
        settings.put("request.timeout.ms", "10000");
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            long end = System.currentTimeMillis() + seconds * 1000;
            for (; System.currentTimeMillis() < end; count++) {
                producer.send(new ProducerRecord<>(topic, String.valueOf(count))).get();
                Thread.sleep(10);
            }
        }
        System.out.println("COUNT " + count);
    }

    static void refused(Properties settings, String name) throws Exception {
        settings.put("default.api.timeout.ms", String.valueOf(LIMIT_MS));
        try (Admin admin = Admin.create(settings)) {
            admin.describeCluster().clusterId().get();
        } catch (ExecutionException error) {
            if (error.getCause() instanceof AuthenticationException) {
                System.out.println(error.getCause().getMessage());
                return;
            }
            throw error;
        }
        throw new IllegalStateException(name + ": the login was not refused");
    }
}
