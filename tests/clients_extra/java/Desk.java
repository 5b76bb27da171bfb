import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs many of Kafka's command line tools in one process: for each line of a class and its arguments, with tabs
 * between them, the tool's main; answered with what it printed, and a line of "\u0001" and its exit code.
 */
public class Desk {
    private static class Ended extends RuntimeException {
        final int code;

        Ended(int code) {
            this.code = code;
        }
    }

    private static int code;
    private static int told;
    private static ByteArrayOutputStream said;

    /** What a tool says after it wished to end is about our way to end it. */
    private static void end(int status) {
        if (code < 0) {
            code = status;
            told = said.size();
        }
        throw new Ended(status);
    }

    public static void main(String[] none) throws Exception {
        Exit.setExitProcedure((status, message) -> end(status));
        Exit.setHaltProcedure((status, message) -> end(status));
        PrintStream answers = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", -1);
            String[] arguments = new String[parts.length - 1];
            System.arraycopy(parts, 1, arguments, 0, arguments.length);
            said = new ByteArrayOutputStream();
            PrintStream all = new PrintStream(said, true, StandardCharsets.UTF_8);
            System.setOut(all);
            System.setErr(all);
            code = -1;
            told = -1;
            try {
                Class<?> tool = Class.forName(parts[0]);
                // Those in Scala print to a stream of their own, which is to be the same.
                scala.Console.withOut(all, () -> {
                    try {
                        tool.getMethod("main", String[].class).invoke(null, (Object) arguments);
                    } catch (InvocationTargetException problem) {
                        if (!(problem.getCause() instanceof Ended)) {
                            problem.getCause().printStackTrace();
                            code = code < 0 ? 1 : code;
                        }
                    } catch (ReflectiveOperationException problem) {
                        problem.printStackTrace();
                        code = 99;
                    }
                    return null;
                });
            } catch (Throwable problem) {
                problem.printStackTrace();
                code = code < 0 ? 1 : code;
            }
            answers.write(said.toByteArray(), 0, code < 0 || told < 0 ? said.size() : told);
            answers.println("\u0001" + Math.max(code, 0));
            answers.flush();
        }
    }
}
