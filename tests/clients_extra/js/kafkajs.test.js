// KafkaJS against the broker that BOOTSTRAP names.

const assert = require('node:assert/strict')
const { test } = require('node:test')
const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel } = require('kafkajs')

const kafka = new Kafka({
  clientId: 'kafkajs-test',
  brokers: [process.env.BOOTSTRAP],
  logLevel: logLevel.NOTHING,
  retry: { retries: 3 },
})

const TOPIC_RETENTION_MS = '70000'
let numbers = 0
const fresh = (kind) => `js-${kind}-${process.pid}-${++numbers}`

async function withAdmin(work) {
  const admin = kafka.admin()
  await admin.connect()
  try {
    return await work(admin)
  } finally {
    await admin.disconnect()
  }
}

async function makeTopic(numPartitions = 1) {
  const topic = fresh('topic')
  await withAdmin((admin) =>
    admin.createTopics({ topics: [{ topic, numPartitions, replicationFactor: 1 }], waitForLeaders: true }),
  )
  return topic
}

async function withProducer(config, work) {
  const producer = kafka.producer(config)
  await producer.connect()
  try {
    return await work(producer)
  } finally {
    await producer.disconnect()
  }
}

async function until(condition, what) {
  const deadline = Date.now() + 20000
  while (!(await condition())) {
    assert.ok(Date.now() < deadline, `not ${what} in time`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

class Member {
  constructor(groupId, topic, config = {}) {
    this.read = []
    this.assigned = null
    this.consumer = kafka.consumer({ groupId, heartbeatInterval: 200, maxWaitTimeInMs: 200, ...config })
    this.consumer.on(this.consumer.events.GROUP_JOIN, ({ payload }) => {
      this.assigned = payload.memberAssignment[topic] ?? []
    })
    this.topic = topic
  }

  async join() {
    await this.consumer.connect()
    await this.consumer.subscribe({ topics: [this.topic], fromBeginning: true })
    await this.consumer.run({
      eachMessage: async ({ partition, message }) => {
        this.read.push({ partition, ...message })
      },
    })
    return this
  }

  async leave() {
    await this.consumer.disconnect()
    this.assigned = []
  }
}

async function readAll(topic, count) {
  const member = await new Member(fresh('group'), topic).join()
  await until(() => member.read.length >= count, `${count} messages read`)
  await member.leave()
  assert.equal(member.read.length, count)
  return member.read
}

for (const [name, compression] of [['none', CompressionTypes.None], ['gzip', CompressionTypes.GZIP]]) {
  for (const idempotent of [false, true]) {
    test(`messages keep every part: ${name}, idempotent ${idempotent}`, async () => {
      const topic = await makeTopic()
      const at = Date.now() - 60000
      const messages = [
        { key: 'key', value: 'value', headers: { a: '1', b: ['2', '3'] }, timestamp: `${at}` },
        { key: null, value: 'no key', timestamp: `${at + 1}` },
        { key: 'deleted', value: null, timestamp: `${at + 2}` },
        { key: 'large', value: Buffer.alloc(500000, 'x'), timestamp: `${at + 3}` },
      ]
      await withProducer({ idempotent, maxInFlightRequests: 1 }, async (producer) => {
        for (let round = 0; round < 3; round++) {
          const [result] = await producer.send({ topic, messages, compression, acks: -1 })
          assert.equal(result.errorCode, 0)
          assert.equal(result.baseOffset, `${round * messages.length}`)
        }
      })
      const read = await readAll(topic, 3 * messages.length)
      read.forEach((got, index) => {
        const sent = messages[index % messages.length]
        assert.equal(got.offset, `${index}`)
        assert.equal(got.timestamp, sent.timestamp)
        assert.equal(got.key === null ? null : got.key.toString(), sent.key)
        assert.equal(got.value === null ? null : got.value.toString(), sent.value === null ? null : `${sent.value}`)
      })
      assert.equal(read[0].headers.a.toString(), '1')
      assert.deepEqual(read[0].headers.b.map(String), ['2', '3'])
    })
  }
}

test('members come and go', async () => {
  const topic = await makeTopic(4)
  const group = fresh('group')
  const send = (count) =>
    withProducer({}, (producer) =>
      producer.send({
        topic,
        messages: Array.from({ length: count }, (_, n) => ({ value: `${n}`, partition: n % 4 })),
      }),
    )
  const shared = (...members) => {
    const owned = members.flatMap((member) => member.assigned ?? [])
    return owned.length === 4 && new Set(owned).size === 4 && members.every((member) => member.assigned?.length)
  }
  const first = await new Member(group, topic).join()
  await until(() => shared(first), 'one member with all partitions')
  const second = await new Member(group, topic).join()
  await until(() => shared(first, second), 'two members with two each')
  await send(100)
  await until(() => first.read.length + second.read.length === 100, 'everything read')
  await first.leave()
  await until(() => shared(second), 'the one that stayed with all partitions')
  await send(100)
  await until(() => first.read.length + second.read.length === 200, 'everything read by the one that stayed')
  await second.leave()
})

test('seek, pause and resume', async () => {
  const topic = await makeTopic()
  await withProducer({}, (producer) =>
    producer.send({ topic, messages: Array.from({ length: 10 }, (_, n) => ({ value: `${n}` })) }),
  )
  const member = await new Member(fresh('group'), topic).join()
  await until(() => member.read.length === 10, 'everything read')
  member.consumer.pause([{ topic }])
  member.consumer.seek({ topic, partition: 0, offset: '7' })
  member.consumer.resume([{ topic }])
  await until(() => member.read.length === 13, 'three read again')
  assert.deepEqual(member.read.slice(10).map((message) => message.offset), ['7', '8', '9'])
  await member.leave()
})

test('topics, settings and the cluster', async () => {
  await withAdmin(async (admin) => {
    const topic = fresh('topic')
    const wanted = {
      topic,
      numPartitions: 2,
      replicationFactor: 1,
      configEntries: [{ name: 'retention.ms', value: TOPIC_RETENTION_MS }],
    }
    assert.equal(await admin.createTopics({ topics: [wanted] }), true)
    assert.equal(await admin.createTopics({ topics: [wanted] }), false)
    await admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] })
    const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
    assert.equal(topics[0].partitions.length, 4)
    const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
    const value = async () => {
      const { resources } = await admin.describeConfigs({ resources: [resource], includeSynonyms: true })
      return resources[0].configEntries.find((entry) => entry.configName === 'retention.ms').configValue
    }
    assert.equal(await value(), TOPIC_RETENTION_MS)
    await admin.alterConfigs({
      resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '80000' }] }],
    })
    assert.equal(await value(), '80000')
    const cluster = await admin.describeCluster()
    assert.equal(`${cluster.brokers[0].host}:${cluster.brokers[0].port}`, process.env.BOOTSTRAP)
    await admin.deleteTopics({ topics: [topic] })
    assert.ok(!(await admin.listTopics()).includes(topic))
  })
})

test('groups, offsets and records', async () => {
  const topic = await makeTopic()
  const at = Date.now() - 60000
  await withProducer({}, (producer) =>
    producer.send({
      topic,
      messages: Array.from({ length: 10 }, (_, n) => ({ value: `${n}`, timestamp: `${at + n * 1000}` })),
    }),
  )
  const groupId = fresh('group')
  await withAdmin(async (admin) => {
    const [ends] = await admin.fetchTopicOffsets(topic)
    assert.deepEqual([ends.low, ends.high], ['0', '10'])
    await admin.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: '4' }] })
    const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] })
    assert.equal(partitions[0].offset, '4')
    const { groups } = await admin.listGroups()
    assert.ok(groups.some((group) => group.groupId === groupId))
    const described = await admin.describeGroups([groupId])
    assert.equal(described.groups[0].state, 'Empty')
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '6' }] })
    assert.equal((await admin.fetchTopicOffsets(topic))[0].low, '6')
    const [byTime] = await admin.fetchTopicOffsetsByTimestamp(topic, at + 7500)
    assert.equal(byTime.offset, '8')
    await admin.deleteGroups([groupId])
  })
})

test('access rules are refused with a reason', async () => {
  await withAdmin(async (admin) => {
    await assert.rejects(
      admin.describeAcls({
        resourceType: 1,
        resourcePatternType: 1,
        operation: 1,
        permissionType: 1,
      }),
      (error) => error.type === 'SECURITY_DISABLED',
    )
  })
})

// readCommitted reads the committed messages of a topic with one partition, until `count` have come.
async function readCommitted(topic, count) {
  const consumer = kafka.consumer({ groupId: fresh('group'), readUncommitted: false })
  const found = []
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`found ${found}`)), 30000).unref()
    consumer
      .run({
        eachMessage: async ({ message }) => {
          found.push(message.value.toString())
          if (found.length === count) resolve()
        },
      })
      .catch(reject)
  })
  await consumer.disconnect()
  return found
}

test('transactions are read whole or not at all', async () => {
  const topic = await makeTopic()
  const groupId = fresh('group')
  const config = { transactionalId: fresh('transfers'), maxInFlightRequests: 1, idempotent: true }
  await withProducer(config, async (producer) => {
    for (const [value, ends] of [['a', 'commit'], ['aborted', 'abort'], ['b', 'commit']]) {
      const transaction = await producer.transaction()
      await transaction.send({ topic, messages: [{ value }] })
      const offset = ends === 'commit' ? '7' : '9'
      await transaction.sendOffsets({
        consumerGroupId: groupId,
        topics: [{ topic, partitions: [{ partition: 0, offset }] }],
      })
      await transaction[ends]()
    }
  })
  await withProducer({}, (producer) => producer.send({ topic, messages: [{ value: 'last' }] }))
  assert.deepEqual(await readCommitted(topic, 3), ['a', 'b', 'last'])
  await withAdmin(async (admin) => {
    const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] })
    assert.equal(partitions[0].offset, '7')
  })
})

test('a second instance fences the first', async () => {
  const topic = await makeTopic()
  const config = { transactionalId: fresh('transfers'), maxInFlightRequests: 1, idempotent: true }
  await withProducer(config, async (first) => {
    const zombie = await first.transaction()
    await zombie.send({ topic, messages: [{ value: 'zombie' }] })
    await withProducer(config, async (second) => {
      const transaction = await second.transaction()
      await transaction.send({ topic, messages: [{ value: 'second' }] })
      await transaction.commit()
    })
    await assert.rejects(zombie.commit(), /epoch|fence/i)
  })
  assert.deepEqual(await readCommitted(topic, 1), ['second'])
})
