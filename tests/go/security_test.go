package drivertests

import (
	"context"
	"errors"
	"net/url"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// secure is a server that asks for a login and for TLS, with a user root and one who is the certificate of client.pem.
type secure struct{ address, folder string }

func startSecure(t *testing.T) secure {
	t.Helper()
	folder := t.TempDir()
	if out, err := exec.Command("bash", "../certificates.sh", folder).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	at := func(name string) string { return filepath.Join(folder, name) }
	s := secure{serve(t, "--auth", "--tlsMode", "requireTLS", "--tlsCertificateKeyFile", at("server.pem"),
		"--tlsCAFile", at("authority.pem"), "--tlsAllowConnectionsWithoutCertificates"), folder}
	first := s.client(t, "", nil)
	deadline := time.Now().Add(60 * time.Second)
	for first.Ping(context.Background(), nil) != nil {
		if time.Now().After(deadline) {
			t.Fatal("the server does not answer")
		}
	}
	run(t, first, "admin", bson.D{{Key: "createUser", Value: "root"}, {Key: "pwd", Value: "secret"}, {Key: "roles", Value: bson.A{"root"}}})
	run(t, s.client(t, "root:secret@", nil), "$external", bson.D{{Key: "createUser", Value: "CN=ann,O=Pando"},
		{Key: "roles", Value: bson.A{bson.D{{Key: "role", Value: "readWrite"}, {Key: "db", Value: "shop"}}}}})
	return s
}

func (s secure) client(t *testing.T, login string, more url.Values) *mongo.Client {
	t.Helper()
	query := url.Values{"tls": {"true"}, "tlsCAFile": {filepath.Join(s.folder, "authority.pem")},
		"directConnection": {"true"}, "serverSelectionTimeoutMS": {"5000"}}
	for name, value := range more {
		query[name] = value
	}
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + login + s.address + "/?" + query.Encode()))
	check(t, err)
	t.Cleanup(func() { client.Disconnect(context.Background()) })
	return client
}

func run(t *testing.T, client *mongo.Client, db string, command bson.D) {
	t.Helper()
	check(t, client.Database(db).RunCommand(context.Background(), command).Err())
}

// who is the user whom the server knows a client as.
func who(client *mongo.Client) (string, error) {
	var status struct {
		AuthInfo struct {
			AuthenticatedUsers []struct{ User string } `bson:"authenticatedUsers"`
		} `bson:"authInfo"`
	}
	err := client.Database("admin").RunCommand(context.Background(), bson.D{{Key: "connectionStatus", Value: 1}}).Decode(&status)
	if err != nil || len(status.AuthInfo.AuthenticatedUsers) != 1 {
		return "", err
	}
	return status.AuthInfo.AuthenticatedUsers[0].User, nil
}

func TestLogins(t *testing.T) {
	s := startSecure(t)
	for _, mechanism := range []string{"", "SCRAM-SHA-256", "SCRAM-SHA-1"} {
		more := url.Values{}
		if mechanism != "" {
			more.Set("authMechanism", mechanism)
		}
		if user, err := who(s.client(t, "root:secret@", more)); err != nil || user != "root" {
			t.Fatal(mechanism, user, err)
		}
		if user, err := who(s.client(t, "root:other@", more)); err == nil {
			t.Fatal(mechanism, user)
		}
	}
	ann := s.client(t, "", url.Values{"authMechanism": {"MONGODB-X509"}, "tlsCertificateKeyFile": {filepath.Join(s.folder, "client.pem")}})
	if user, err := who(ann); err != nil || user != "CN=ann,O=Pando" {
		t.Fatal(user, err)
	}
	ctx := context.Background()
	_, err := ann.Database("shop").Collection("things").InsertOne(ctx, bson.M{"_id": "go"})
	check(t, err)
	_, err = ann.Database("other").Collection("things").InsertOne(ctx, bson.M{})
	var refused mongo.ServerError
	if !errors.As(err, &refused) || !refused.HasErrorCode(13) {
		t.Fatal(err)
	}
	if err := s.client(t, "", nil).Database("shop").Collection("things").FindOne(ctx, bson.M{}).Err(); !errors.As(err, &refused) || !refused.HasErrorCode(13) {
		t.Fatal(err)
	}
}
