import java.util.Objects;
import java.util.concurrent.Callable;

/** TAP for the clients in Java: check(name, got, wanted), raised(kind, work), done(). */
public class Tap {
    private static int count, bad;

    public static void check(String name, Object got, Object wanted) {
        boolean good = Objects.equals(got, wanted);
        bad += good ? 0 : 1;
        System.out.println((good ? "ok " : "not ok ") + ++count + " - " + name);
        if (!good) System.out.println("# got " + got + ", wanted " + wanted);
    }

    /** What the work throws, which must be of that kind. */
    public static <T extends Throwable> T raised(Class<T> kind, Callable<?> work) {
        try {
            work.call();
        } catch (Throwable thrown) {
            if (kind.isInstance(thrown)) return kind.cast(thrown);
            throw new IllegalStateException(thrown);
        }
        throw new IllegalStateException("nothing was thrown");
    }

    public static void done() {
        System.out.println("1.." + count);
        System.exit(bad > 0 ? 1 : 0);
    }
}
