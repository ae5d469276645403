#!/usr/bin/env bash
# Certificates for the drivers' tests: tests/certificates.sh FOLDER
#
#     authority.pem            who signs
#     server.pem, client.pem   certificate and key; the client is CN=ann,O=Pando
#     client.p12               the client's for Java; its password is "pando"
set -euo pipefail
cd "$1"
umask 077

key() { openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key"; }

key authority
openssl req -x509 -new -key authority.key -subj /O=Pando/CN=authority -days 30 -out authority.pem

# issue FILE SUBJECT: what the server has of O, OU and DC would make a client a member of the cluster.
issue() {
    key "$1"
    openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
    printf '%s\n' subjectAltName=DNS:localhost,IP:127.0.0.1 basicConstraints=CA:FALSE >"$1.ext"
    openssl x509 -req -in "$1.csr" -CA authority.pem -CAkey authority.key -set_serial "0x$(openssl rand -hex 8)" -days 30 \
        -extfile "$1.ext" -out "$1.crt" 2>"$1.said" || { cat "$1.said" >&2; return 1; }
    cat "$1.crt" "$1.key" >"$1.pem"
}

issue server /O=Pando/OU=Servers/CN=server
issue client /O=Pando/CN=ann
openssl pkcs12 -export -in client.pem -passout pass:pando -out client.p12
