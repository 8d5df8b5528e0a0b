// What MQTT.js asks of the broker. Each case is spread over transports, versions and QoS.

import { expect, require } from './suite.mjs'
import { Stage, expectPayload, messagesOf } from './peer.mjs'

const TRANSPORTS = ['tcp', 'tls', 'ws', 'wss']
const ALL = ['v3.1', 'v3.1.1', 'v5']
const SINCE_V311 = ['v3.1.1', 'v5']
const V5 = ['v5']
const QOS = [0, 1, 2]
const SESSION_TAKEN_OVER = 0x8e
const EVERY_BYTE = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte))
const MEGABYTE = Buffer.concat(Array.from({ length: 4096 }, () => EVERY_BYTE))

/** Every case, spread over its axes. */
export const cases = []

function scenario(label, { versions = ALL, qos = [null], known = () => undefined }, body) {
  for (const transport of TRANSPORTS) {
    for (const version of versions) {
      for (const level of qos) {
        const tail = level === null ? '' : `-qos${level}`
        cases.push({
          name: `mqttjs/${transport}/${version}/${label}${tail}`,
          known: known(transport),
          body: async () => {
            const stage = new Stage(transport, version)
            try {
              await body(stage, level)
            } finally {
              await stage.close()
            }
          },
        })
      }
    }
  }
}

async function roundTrip(stage, payload, qos, to = {}) {
  const subscriber = await stage.client('sub', to)
  const publisher = await stage.client('pub')
  expect(await subscriber.subscribe(stage.topic('data'), qos), [qos], 'granted QoS')
  await publisher.publish(stage.topic('data'), payload, qos)
  const message = await subscriber.message()
  expectPayload(message.payload, payload)
  expect([message.topic, message.packet.qos, message.packet.retain], [stage.topic('data'), qos, false], 'topic, QoS, RETAIN')
}

// === Delivery ===

scenario('round-trip', { qos: QOS }, (stage, qos) => roundTrip(stage, EVERY_BYTE, qos))

scenario('empty-payload', { qos: QOS }, (stage, qos) => roundTrip(stage, Buffer.alloc(0), qos))

scenario(
  'megabyte',
  {
    qos: QOS,
    known: (transport) =>
      transport.startsWith('ws') ? { mosquitto: 'stalls on a large message to a WebSocket subscriber' } : undefined,
  },
  (stage, qos) => roundTrip(stage, MEGABYTE, qos),
)

for (const transport of TRANSPORTS) {
  for (const version of ALL) {
    scenario(`crossing-to-${transport}-${version}`, { qos: [2] }, (stage, qos) =>
      roundTrip(stage, EVERY_BYTE, qos, { transport, version }),
    )
  }
}

scenario('wildcards', {}, async (stage) => {
  const publisher = await stage.client('pub')
  const subscriber = await stage.client('sub')
  await subscriber.subscribe(stage.topic('t/+/c'), 1)
  await subscriber.subscribe(stage.topic('u/#'), 1)
  await subscriber.subscribe(stage.topic('fence'), 1)
  for (const leaf of ['t/a/c', 't/a/b/c', 't/a', 'u', 'u/a/b', 'v']) await publisher.publish(stage.topic(leaf), '', 1)
  const seen = await stage.fenced(publisher, subscriber)
  expect(seen.map(({ topic }) => topic), ['t/a/c', 'u', 'u/a/b'].map((leaf) => stage.topic(leaf)), 'topics')
})

scenario('unsubscribing', {}, async (stage) => {
  const publisher = await stage.client('pub')
  const subscriber = await stage.client('sub')
  await subscriber.subscribe(stage.topic('data'), 1)
  await subscriber.subscribe(stage.topic('fence'), 1)
  await subscriber.unsubscribe(stage.topic('data'))
  await publisher.publish(stage.topic('data'), 'x', 1)
  expect(await stage.fenced(publisher, subscriber), [], 'messages after UNSUBSCRIBE')
})

// === Retained and will ===

scenario('retained-set-and-clear', { qos: QOS }, async (stage, qos) => {
  const publisher = await stage.client('pub')
  await publisher.publish(stage.topic('data'), 'kept', qos, { retain: true })
  // A round trip on the same connection: a QoS 0 publish has no acknowledgement of its own.
  await publisher.publish(stage.topic('other'), '', 1)
  const late = await stage.client('late')
  await late.subscribe(stage.topic('data'), qos)
  const message = await late.message('retained message')
  expect([message.payload.toString(), message.packet.retain], ['kept', true], 'payload and RETAIN')
  await publisher.publish(stage.topic('data'), '', 1, { retain: true })
  const later = await stage.client('later')
  await later.subscribe(stage.topic('fence'), 1)
  await later.subscribe(stage.topic('data'), qos)
  expect(await stage.fenced(publisher, later), [], 'messages on a cleared topic')
})

scenario('will-on-abnormal-close', { qos: QOS }, async (stage, qos) => {
  const watcher = await stage.client('watch')
  await watcher.subscribe(stage.topic('will'), qos)
  const will = { topic: stage.topic('will'), payload: Buffer.from('gone'), qos, retain: false }
  const dying = await stage.client('dying', { will })
  await dying.cut()
  const message = await watcher.message('Will Message')
  expect([message.payload.toString(), message.packet.qos], ['gone', qos], 'payload and QoS of the will')
})

scenario('no-will-after-disconnect', {}, async (stage) => {
  const watcher = await stage.client('watch')
  await watcher.subscribe(stage.topic('will'), 1)
  await watcher.subscribe(stage.topic('fence'), 1)
  const will = { topic: stage.topic('will'), payload: Buffer.from('gone'), qos: 1, retain: false }
  const leaving = await stage.client('leaving', { will })
  await leaving.disconnect()
  expect(await stage.fenced(await stage.client('pub'), watcher), [], 'messages after a normal DISCONNECT')
})

// === Session ===

scenario('resume', { qos: [1, 2] }, async (stage, qos) => {
  const first = await stage.client('sub', stage.lasting(stage.version === 'v5'))
  await first.subscribe(stage.topic('data'), qos)
  await first.disconnect()
  const publisher = await stage.client('pub')
  const wanted = ['one', 'two', 'three']
  for (const payload of wanted) await publisher.publish(stage.topic('data'), payload, qos)
  const again = stage.peer('sub', stage.lasting())
  const connack = await again.connected()
  if (stage.version !== 'v3.1') expect(connack.sessionPresent, true, 'Session Present')
  const seen = []
  for (const _ of wanted) seen.push((await again.message('offline message')).payload.toString())
  expect(seen, wanted, 'offline messages')
})

scenario('takeover', {}, async (stage) => {
  const first = await stage.client('twin')
  const second = await stage.client('twin')
  await first.ended()
  await second.subscribe(stage.topic('data'), 1)
  await second.publish(stage.topic('data'), 'alive', 1)
  expect((await second.message()).payload.toString(), 'alive', 'payload of the second client')
})

scenario(
  'takeover-says-why',
  { versions: V5, known: () => ({ mosquitto: 'takes over without telling the first client why' }) },
  async (stage) => {
    const first = await stage.client('twin')
    await stage.client('twin')
    expect(await first.dismissed(), SESSION_TAKEN_OVER, 'reason of the DISCONNECT to the first')
  },
)

scenario('shared-each-once', { versions: SINCE_V311, qos: QOS }, async (stage, qos) => {
  const members = [await stage.client('m1'), await stage.client('m2')]
  for (const member of members) await member.subscribe(`$share/g/${stage.topic('data')}`, qos)
  const publisher = await stage.client('pub')
  const wanted = Array.from({ length: 20 }, (_, number) => String(number + 10))
  for (const payload of wanted) await publisher.publish(stage.topic('data'), payload, qos)
  // Nothing orders these messages and others: the group has all when their number is right.
  const seen = await messagesOf(members, wanted.length)
  expect(seen.map(({ payload }) => payload.toString()).toSorted(), wanted, 'messages of the group')
})

// === MQTT 5.0 ===

scenario('properties-pass-through', { versions: V5, qos: QOS }, async (stage, qos) => {
  const subscriber = await stage.client('sub')
  await subscriber.subscribe(stage.topic('data'), qos, { properties: { subscriptionIdentifier: 77 } })
  const properties = {
    payloadFormatIndicator: true,
    contentType: 'text/plain',
    responseTopic: stage.topic('answer'),
    correlationData: Buffer.from([0, 255]),
    userProperties: { a: ['1', '2'], b: '3' },
  }
  await (await stage.client('pub')).publish(stage.topic('data'), 'x', qos, { properties })
  const found = (await subscriber.message()).packet.properties
  for (const [name, wanted] of Object.entries(properties)) expect(found[name], wanted, name)
  expect(found.subscriptionIdentifier, 77, 'Subscription Identifier')
})

scenario('topic-aliases', { versions: V5 }, async (stage) => {
  // Both sides resolve by themselves: MQTT.js assigns aliases, and accepts the broker's.
  const subscriber = await stage.client('sub', { properties: { topicAliasMaximum: 5 } })
  const publisher = await stage.client('pub', { autoAssignTopicAlias: true })
  await subscriber.subscribe(stage.topic('+'), 1)
  const leaves = ['a', 'b', 'a', 'b', 'a']
  for (const leaf of leaves) await publisher.publish(stage.topic(leaf), leaf, 1)
  for (const leaf of leaves) {
    const message = await subscriber.message()
    expect([message.topic, message.payload.toString()], [stage.topic(leaf), leaf], 'topic and payload')
  }
})

scenario('no-local-and-retain-options', { versions: V5 }, async (stage) => {
  const both = await stage.client('both')
  const other = await stage.client('other')
  await other.publish(stage.topic('data'), 'kept', 1, { retain: true })
  await both.subscribe(stage.topic('fence'), 1)
  await both.subscribe(stage.topic('data'), 1, { nl: true, rap: true, rh: 2 })
  await both.publish(stage.topic('data'), 'own', 1)
  await other.publish(stage.topic('data'), 'other', 1, { retain: true })
  const seen = (await stage.fenced(other, both)).map(({ payload, packet }) => [payload.toString(), packet.retain])
  expect(seen, [['other', true]], 'payload and RETAIN of what arrived')
})

scenario('assigned-client-id', { versions: V5 }, async (stage) => {
  const nameless = stage.peer('', { clientId: '' })
  const { properties } = await nameless.connected()
  require(properties.assignedClientIdentifier.length > 0, 'no assigned client id')
})
