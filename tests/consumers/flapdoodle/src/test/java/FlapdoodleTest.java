import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.mongodb.MongoClientSettings;
import com.mongodb.MongoCommandException;
import com.mongodb.MongoWriteException;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import de.flapdoodle.embed.mongo.client.AuthenticationSetup;
import de.flapdoodle.embed.mongo.client.ClientActions;
import de.flapdoodle.embed.mongo.client.SyncClientAdapter;
import de.flapdoodle.embed.mongo.client.UsernamePassword;
import de.flapdoodle.embed.mongo.commands.MongodArguments;
import de.flapdoodle.embed.mongo.commands.MongosArguments;
import de.flapdoodle.embed.mongo.commands.ServerAddress;
import de.flapdoodle.embed.mongo.config.Storage;
import de.flapdoodle.embed.mongo.distribution.Version;
import de.flapdoodle.embed.mongo.transitions.ImmutableMongod;
import de.flapdoodle.embed.mongo.transitions.Mongod;
import de.flapdoodle.embed.mongo.transitions.Mongos;
import de.flapdoodle.embed.mongo.transitions.RunningMongoProcess;
import de.flapdoodle.embed.mongo.transitions.RunningMongodProcess;
import de.flapdoodle.embed.mongo.transitions.RunningMongosProcess;
import de.flapdoodle.embed.process.archives.ExtractedFileSet;
import de.flapdoodle.reverse.Listener;
import de.flapdoodle.reverse.StateID;
import de.flapdoodle.reverse.TransitionWalker.ReachedState;
import de.flapdoodle.reverse.Transitions;
import de.flapdoodle.reverse.transitions.Start;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.bson.Document;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Flapdoodle's embedded MongoDB with the built server (PANDO_BIN) as its executable, which it need not fetch then. */
class FlapdoodleTest {
    static final Version.Main VERSION = Version.Main.V8_0;
    static final Path bin = Path.of("target", "bin").toAbsolutePath();

    @BeforeAll
    static void links() throws Exception {
        Files.createDirectories(bin);
        for (String name : List.of("mongod", "mongos")) {
            Files.deleteIfExists(bin.resolve(name));
            Files.createSymbolicLink(bin.resolve(name), Path.of(System.getenv("PANDO_BIN")));
        }
    }

    static Transitions with(Transitions all, String name) {
        ExtractedFileSet files = ExtractedFileSet.builder(bin).executable(bin.resolve(name)).build();
        return all.replace(Start.to(ExtractedFileSet.class).initializedWith(files));
    }

    static ReachedState<RunningMongodProcess> mongod(MongodArguments arguments, Listener... listeners) {
        ImmutableMongod mongod = Mongod.instance().withMongodArguments(Start.to(MongodArguments.class).initializedWith(arguments));
        return with(mongod.transitions(VERSION), "mongod").walker().initState(StateID.of(RunningMongodProcess.class), listeners);
    }

    static MongoClient client(String login, ReachedState<? extends RunningMongoProcess> running) {
        ServerAddress at = running.current().getServerAddress();
        return MongoClients.create("mongodb://" + login + at.getHost() + ":" + at.getPort() + "/?directConnection=true");
    }

    static boolean answers(ServerAddress at) {
        try (Socket socket = new Socket()) {
            socket.connect(new InetSocketAddress(at.getHost(), at.getPort()), 2000);
            return true;
        } catch (java.io.IOException refused) {
            return false;
        }
    }

    @Test
    void aServerThatIsStartedAndStopped() {
        ServerAddress at;
        try (ReachedState<RunningMongodProcess> running = mongod(MongodArguments.defaults());
                MongoClient client = client("", running)) {
            at = running.current().getServerAddress();
            var collection = client.getDatabase("test").getCollection("c");
            collection.insertOne(new Document("_id", 1));
            assertEquals(1, collection.countDocuments());
            assertThrows(MongoWriteException.class, () -> collection.insertOne(new Document("_id", 1)));
        }
        assertFalse(answers(at), "it has been stopped");
    }

    @Test
    void usersAndRoles() {
        var users = ClientActions.setupAuthentication(
                new SyncClientAdapter(MongoClientSettings.builder().build()),
                "admin",
                AuthenticationSetup.of(UsernamePassword.of("owner", "first".toCharArray()))
                        .withEntries(AuthenticationSetup.user("shop", UsernamePassword.of("reader", "second".toCharArray())).withRoles("read")));
        try (ReachedState<RunningMongodProcess> running = mongod(MongodArguments.defaults().withAuth(true), users);
                MongoClient owner = client("owner:first@", running);
                MongoClient reader = MongoClients.create(login(running.current().getServerAddress()))) {
            owner.getDatabase("shop").getCollection("c").insertOne(new Document("_id", 1));
            var seen = reader.getDatabase("shop").getCollection("c");
            assertEquals(1, seen.countDocuments());
            var refused = assertThrows(MongoCommandException.class, () -> seen.insertOne(new Document("_id", 2)));
            assertTrue(refused.getMessage().contains("not authorized on shop"), refused.getMessage());
        }
    }

    static String login(ServerAddress at) {
        return "mongodb://reader:second@" + at.getHost() + ":" + at.getPort() + "/?authSource=shop&directConnection=true";
    }

    @Test
    void aSetAndARouter() {
        Storage storage = Storage.of("testRepSet", 5000);
        var set = ClientActions.initReplicaSet(new SyncClientAdapter(MongoClientSettings.builder().build()), VERSION, storage);
        var arguments = MongodArguments.defaults().withIsConfigServer(true).withReplication(storage);
        try (ReachedState<RunningMongodProcess> config = mongod(arguments, set)) {
            var of = MongosArguments.defaults()
                    .withConfigDB(config.current().getServerAddress().toString())
                    .withReplicaSet("testRepSet");
            Mongos mongos = new Mongos() {
                @Override
                public Start<MongosArguments> mongosArguments() {
                    return Start.to(MongosArguments.class).initializedWith(of);
                }
            };
            var all = with(mongos.transitions(VERSION), "mongos");
            try (ReachedState<RunningMongosProcess> router = all.walker().initState(StateID.of(RunningMongosProcess.class));
                    MongoClient client = client("", router)) {
                assertTrue(client.listDatabaseNames().into(new java.util.ArrayList<>()).containsAll(List.of("admin", "config")));
            }
        }
    }
}
