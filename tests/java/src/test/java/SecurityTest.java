import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.mongodb.ConnectionString;
import com.mongodb.MongoClientSettings;
import com.mongodb.MongoCommandException;
import com.mongodb.MongoCredential;
import com.mongodb.MongoSecurityException;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.List;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import org.bson.Document;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Logins and TLS with the Java driver, whose applications bring certificates as key stores. */
class SecurityTest {
    @TempDir static Path directory;
    static Process server;
    static int port;

    @BeforeAll
    static void start() throws Exception {
        Process made = new ProcessBuilder("bash", "../certificates.sh", directory.toString()).inheritIO().start();
        assertEquals(0, made.waitFor());
        try (ServerSocket probe = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            port = probe.getLocalPort();
        }
        String binary = System.getenv().getOrDefault("PANDO_BIN", "../../target/debug/pando");
        server = new ProcessBuilder(binary, "serve", "--dbpath", directory.resolve("data").toString(), "--port", "" + port,
                "--auth", "--tlsMode", "requireTLS", "--tlsCertificateKeyFile", directory.resolve("server.pem").toString(),
                "--tlsCAFile", directory.resolve("authority.pem").toString(), "--tlsAllowConnectionsWithoutCertificates")
                .redirectErrorStream(true)
                .redirectOutput(directory.resolve("log").toFile())
                .start();
        try (MongoClient first = client(null, false, 30_000)) {
            first.getDatabase("admin").runCommand(new Document("createUser", "root").append("pwd", "secret").append("roles", List.of("root")));
        }
        try (MongoClient root = client(MongoCredential.createCredential("root", "admin", "secret".toCharArray()), false, 5_000)) {
            Document role = new Document("role", "readWrite").append("db", "shop");
            root.getDatabase("$external").runCommand(new Document("createUser", "CN=ann,O=Pando").append("roles", List.of(role)));
        }
    }

    @AfterAll
    static void stop() throws Exception {
        server.destroy();
        assertTrue(server.waitFor(30, java.util.concurrent.TimeUnit.SECONDS), "the server does not end");
    }

    static SSLContext context(boolean withCertificate) throws Exception {
        KeyStore trusted = KeyStore.getInstance("PKCS12");
        trusted.load(null, null);
        try (InputStream in = Files.newInputStream(directory.resolve("authority.pem"))) {
            trusted.setCertificateEntry("authority", CertificateFactory.getInstance("X.509").generateCertificate(in));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        KeyManagerFactory keys = null;
        if (withCertificate) {
            KeyStore own = KeyStore.getInstance("PKCS12");
            try (InputStream in = Files.newInputStream(directory.resolve("client.p12"))) {
                own.load(in, "pando".toCharArray());
            }
            keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            keys.init(own, "pando".toCharArray());
        }
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys == null ? null : keys.getKeyManagers(), trust.getTrustManagers(), null);
        return context;
    }

    static MongoClient client(MongoCredential credential, boolean withCertificate, int patienceMillis) throws Exception {
        SSLContext context = context(withCertificate);
        ConnectionString uri = new ConnectionString("mongodb://localhost:" + port + "/?directConnection=true&serverSelectionTimeoutMS=" + patienceMillis);
        MongoClientSettings.Builder settings = MongoClientSettings.builder().applyConnectionString(uri)
                .applyToSslSettings(ssl -> ssl.enabled(true).context(context));
        return MongoClients.create(credential == null ? settings.build() : settings.credential(credential).build());
    }

    static String who(MongoClient client) {
        Document status = client.getDatabase("admin").runCommand(new Document("connectionStatus", 1));
        return status.get("authInfo", Document.class).getList("authenticatedUsers", Document.class).get(0).getString("user");
    }

    @Test
    void passwords() throws Exception {
        for (String given : List.of("secret", "other")) {
            char[] password = given.toCharArray();
            for (MongoCredential credential : List.of(
                    MongoCredential.createCredential("root", "admin", password),
                    MongoCredential.createScramSha256Credential("root", "admin", password),
                    MongoCredential.createScramSha1Credential("root", "admin", password))) {
                try (MongoClient client = client(credential, false, 5_000)) {
                    if (given.equals("secret")) {
                        assertEquals("root", who(client));
                    } else {
                        assertThrows(MongoSecurityException.class, () -> who(client));
                    }
                }
            }
        }
    }

    @Test
    void certificates() throws Exception {
        try (MongoClient ann = client(MongoCredential.createMongoX509Credential(), true, 5_000)) {
            assertEquals("CN=ann,O=Pando", who(ann));
            ann.getDatabase("shop").getCollection("things").insertOne(new Document("_id", "java"));
            Document insert = new Document("insert", "things").append("documents", List.of(new Document()));
            assertEquals(13, assertThrows(MongoCommandException.class, () -> ann.getDatabase("other").runCommand(insert)).getErrorCode());
        }
        try (MongoClient nobody = client(null, false, 5_000)) {
            assertEquals(13, assertThrows(MongoCommandException.class,
                    () -> nobody.getDatabase("shop").getCollection("things").find().first()).getErrorCode());
        }
    }
}
