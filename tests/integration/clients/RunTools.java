import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's tools in one JVM, one after the other. Each line of standard input has a class and its arguments, with tabs between
 * them. The answer is a line with the number of bytes that the tool has printed, and then these bytes.
 */
public class RunTools {
    private static final class Ended extends RuntimeException {}

    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        // Before any tool is loaded: Scala's println keeps the stream that it finds.
        PrintStream both = new PrintStream(printed, true, "UTF-8");
        System.setOut(both);
        System.setErr(both);
        Exit.Procedure end = (code, message) -> {
            throw new Ended();
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            run(line.split("\t"));
            both.flush();
            byte[] found = printed.toByteArray();
            printed.reset();
            answers.println(found.length);
            answers.write(found);
            answers.flush();
        }
    }

    private static void run(String[] words) throws Exception {
        String[] arguments = Arrays.copyOfRange(words, 1, words.length);
        try {
            Class.forName(words[0]).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException error) {
            if (!(error.getCause() instanceof Ended)) {
                error.getCause().printStackTrace();
            }
        }
    }
}
