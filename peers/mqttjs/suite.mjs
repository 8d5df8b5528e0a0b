// Runs cases one after another, each one bounded, and prints one line per case: the twin of suite.py.

const WAIT = Number(process.env.PEERS_WAIT ?? '8') * 1000
const CASE_LIMIT = Number(process.env.PEERS_CASE_LIMIT ?? '30') * 1000
const BROKER = process.env.PEERS_BROKER ?? 'braidmq'

/** The broker did something else than the specification says. */
export class Mismatch extends Error {}

/** Throws a Mismatch unless both render to the same JSON. */
export function expect(actual, wanted, what) {
  const [got, want] = [brief(actual), brief(wanted)]
  if (JSON.stringify(actual) !== JSON.stringify(wanted)) {
    throw new Mismatch(`${what}: got ${got}, wanted ${want}`)
  }
}

/** Throws a Mismatch unless the condition holds. */
export function require(condition, what) {
  if (!condition) throw new Mismatch(what)
}

/** Settles like the promise, or throws a Mismatch after the limit. */
export async function bounded(promise, what, limit = WAIT) {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Mismatch(`no ${what} within ${limit / 1000} s`)), limit)
  })
  try {
    return await Promise.race([promise, late])
  } finally {
    clearTimeout(timer)
  }
}

/** Runs {name, body, known} whose name holds PEERS_ONLY; returns the exit code of the suite. */
export async function run(cases) {
  const only = process.env.PEERS_ONLY ?? ''
  let failed = 0
  for (const one of cases.filter(({ name }) => name.includes(only))) {
    if (!(await runOne(one))) failed += 1
  }
  return failed ? 1 : 0
}

async function runOne({ name, body, known = {} }) {
  const started = performance.now()
  let reason = null
  try {
    await bounded(body(), 'end of the case', CASE_LIMIT)
  } catch (error) {
    reason = error instanceof Mismatch ? error.message : `${error.name}: ${error.message}`
  }
  const differs = known[BROKER]
  if (reason === null && differs === undefined) {
    console.log(`ok ${name} (${Math.round(performance.now() - started)} ms)`)
    return true
  }
  if (reason === null) {
    console.log(`FAIL ${name}: marked as a known difference of ${BROKER}, but it passes`)
    return false
  }
  const line = reason.replaceAll('\n', ' ')
  console.log(differs ? `known ${name}: ${BROKER}: ${differs} [${line}]` : `FAIL ${name}: ${line}`)
  return differs !== undefined
}

function brief(value) {
  const text = JSON.stringify(value) ?? 'undefined'
  return text.length <= 160 ? text : `${text.slice(0, 120)}... (${text.length} characters)`
}
