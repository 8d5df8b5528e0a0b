#!/bin/sh
# Makes an authority and certificates for three NATS servers and three brokers: sh certificates.sh DIRECTORY [DOMAIN]
#
#   ca.pem, ca-key.pem               authority; keep its key away from the machines
#   nats-N.pem, nats-N-key.pem       server nats-N.DOMAIN, also for its connections to the other servers
#   node-N.pem, node-N-key.pem       broker: all have the subject that account.conf permits
#   operator.pem, operator-key.pem   for `nats server ...`
#   streams.pem, streams-key.pem     for `nats stream ...`
#
# Files that exist are kept, so that a second run adds what is missing. They are valid for two years; the authority for ten.
set -eu

[ $# -ge 1 ] || { echo "usage: sh certificates.sh DIRECTORY [DOMAIN]" >&2; exit 2; }
domain=${2:-example}
umask 077
mkdir -p "$1"
cd "$1"

make_key() {
  openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2> /dev/null
}

if [ ! -e ca.pem ]; then
  make_key ca-key.pem
  openssl req -x509 -new -key ca-key.pem -sha256 -days 3650 -subj "/CN=BraidMQ cluster" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" -out ca.pem
fi

# issue NAME SUBJECT EXTENSIONS
issue() {
  [ -e "$1.pem" ] && return
  make_key "$1-key.pem"
  openssl req -new -key "$1-key.pem" -subj "$2" -out "$1.csr"
  printf '%s\n' "keyUsage=critical,digitalSignature" "$3" > "$1.ext"
  openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca-key.pem -CAcreateserial -sha256 -days 730 \
    -extfile "$1.ext" -out "$1.pem" 2> /dev/null
  rm "$1.csr" "$1.ext"
}

for number in 1 2 3; do
  issue "nats-$number" "/CN=nats-$number" \
    "subjectAltName=DNS:nats-$number.$domain
extendedKeyUsage=serverAuth,clientAuth"
  issue "node-$number" "/CN=braidmq-node" "extendedKeyUsage=clientAuth"
done
issue operator "/CN=nats-operator" "extendedKeyUsage=clientAuth"
issue streams "/CN=braidmq-operator" "extendedKeyUsage=clientAuth"
# Certificates are public, keys are not.
for certificate in ca nats-1 nats-2 nats-3 node-1 node-2 node-3 operator streams; do
  chmod 0644 "$certificate.pem"
done
