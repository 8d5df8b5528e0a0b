"""What paho-mqtt and hand-made packets ask of the broker, one module per chapter of MQTT."""
