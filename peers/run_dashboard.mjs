// The dashboard in headless Chromium: against its mock and a real broker, or against the one whose URL is in PEERS_DASHBOARD.

import { run } from './mqttjs/suite.mjs'
import { cases, close } from './dashboard/stage.mjs'
import './dashboard/cases_views.mjs'
import './dashboard/cases_lanes.mjs'
import './dashboard/cases_console.mjs'
import './dashboard/cases_access.mjs'
import './dashboard/cases_broker.mjs'

const code = await run(cases)
await close()
process.exit(code)
