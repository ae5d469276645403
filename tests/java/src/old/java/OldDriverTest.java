import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.mongodb.BasicDBObject;
import com.mongodb.DBCollection;
import com.mongodb.DBObject;
import com.mongodb.MongoClient;
import com.mongodb.MongoClientURI;
import com.mongodb.MongoWriteException;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.model.Accumulators;
import com.mongodb.client.model.Aggregates;
import com.mongodb.client.model.Indexes;
import com.mongodb.client.model.Sorts;
import com.mongodb.client.model.UpdateOptions;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.bson.Document;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The Java driver of the 3 series, as applications of its time use it, against the built server (PANDO_BIN). */
class OldDriverTest {
    @TempDir static Path directory;
    static Process server;
    static int port;
    MongoClient client;
    MongoCollection<Document> things;

    @BeforeAll
    static void start() throws Exception {
        try (ServerSocket probe = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            port = probe.getLocalPort();
        }
        String binary = System.getenv().getOrDefault("PANDO_BIN", "../../target/debug/pando");
        server = new ProcessBuilder(binary, "serve", "--dbpath", directory.resolve("data").toString(), "--port", "" + port)
                .redirectErrorStream(true)
                .redirectOutput(directory.resolve("log").toFile())
                .start();
    }

    @AfterAll
    static void stop() throws Exception {
        server.destroy();
        assertTrue(server.waitFor(30, TimeUnit.SECONDS), "the server ends when asked");
    }

    void connect(String options) {
        client = new MongoClient(new MongoClientURI("mongodb://127.0.0.1:" + port + "/?serverSelectionTimeoutMS=30000" + options));
        client.getDatabase("old").drop();
        things = client.getDatabase("old").getCollection("things");
        List<Document> all = new ArrayList<>();
        for (int i = 0; i < 1000; i++) all.add(new Document("_id", i).append("n", i).append("g", i % 7));
        things.insertMany(all);
    }

    @AfterEach
    void close() {
        client.close();
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "&replicaSet=rs0&retryWrites=true"})
    void readsAndWrites(String options) {
        connect(options);
        List<Document> found = things.find(new Document("g", 3)).sort(Sorts.descending("n")).limit(2).into(new ArrayList<>());
        assertEquals(Arrays.asList(997, 990), Arrays.asList(found.get(0).get("_id"), found.get(1).get("_id")));
        assertEquals(1000, things.find().batchSize(100).into(new ArrayList<>()).size());
        assertEquals(143, things.updateMany(new Document("g", 1), new Document("$set", new Document("z", 1))).getModifiedCount());
        things.updateOne(new Document("_id", "new"), new Document("$set", new Document("z", 1)), new UpdateOptions().upsert(true));
        assertEquals(143, things.deleteMany(new Document("g", 2)).getDeletedCount());
        assertEquals(858, things.countDocuments());
        assertEquals(5, things.findOneAndUpdate(new Document("_id", 5), new Document("$inc", new Document("n", 1))).get("n"));
        assertThrows(MongoWriteException.class, () -> things.insertOne(new Document("_id", 5)));
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "&replicaSet=rs0"})
    void indexesAndPipelines(String options) {
        connect(options);
        assertEquals("g_1_n_-1", things.createIndex(Indexes.compoundIndex(Indexes.ascending("g"), Indexes.descending("n"))));
        assertEquals(2, things.listIndexes().into(new ArrayList<>()).size());
        List<Document> groups = things.aggregate(Arrays.asList(
                        Aggregates.group("$g", Accumulators.sum("n", 1)), Aggregates.sort(Sorts.ascending("_id"))))
                .batchSize(2)
                .into(new ArrayList<>());
        assertEquals(7, groups.size());
        assertEquals(143, groups.get(1).get("n"));
    }

    /** The interface from before version 3. */
    @ParameterizedTest
    @ValueSource(strings = {"", "&w=1"})
    @SuppressWarnings("deprecation")
    void theInterfaceOfOld(String options) {
        connect(options);
        DBCollection old = client.getDB("old").getCollection("things");
        old.insert(new BasicDBObject("_id", "x"));
        old.update(new BasicDBObject("_id", "x"), new BasicDBObject("$set", new BasicDBObject("n", -1)));
        int seen = 0;
        for (DBObject each : old.find().sort(new BasicDBObject("n", 1)).batchSize(50)) {
            if (seen++ == 0) assertEquals("x", each.get("_id"));
        }
        assertEquals(1001, seen);
        assertEquals(1, old.remove(new BasicDBObject("_id", "x")).getN());
        assertTrue(old.find(new BasicDBObject("g", 3)).explain().containsField("queryPlanner"));
    }
}
