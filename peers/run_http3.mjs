// Chromium against the HTTP front of the broker, over HTTP/3.

import { cases } from './http/chromium.mjs'
import { run } from './mqttjs/suite.mjs'

process.exit(await run(cases))
