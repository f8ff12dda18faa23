import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Usage: WordCount BOOTSTRAP APPLICATION_ID STATE_FOLDER INPUT OUTPUT KEY=VALUE...
 *
 * Counts the words of INPUT into OUTPUT, each update of a count once: exactly_once_v2, with a store, its changelog and a repartition
 * topic, and no cache that would leave updates out. The rest are settings of Kafka Streams. Prints the states of the application.
 */
public class WordCount {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("application.id", arguments[1]);
        settings.put("state.dir", arguments[2]);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("auto.offset.reset", "earliest");
        for (int index = 5; index < arguments.length; index++) {
            String[] pair = arguments[index].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[3], Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> List.of(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()))
            .count(Materialized.as("counts"))
            .toStream()
            .mapValues(count -> String.valueOf(count))
            .to(arguments[4], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener((after, before) -> System.out.println("STATE " + after));
        streams.setUncaughtExceptionHandler(error -> {
            System.out.println("FAILED " + error + " BECAUSE " + error.getCause());
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
        streams.start();
    }
}
