// MQTT.js against the broker: every case over tcp, tls, ws and wss, on every version it applies to.

import { cases } from './mqttjs/cases.mjs'
import { run } from './mqttjs/suite.mjs'

process.exit(await run(cases))
