"""MQTT on several QUIC streams of one connection, one module per chapter of the wire contract."""
