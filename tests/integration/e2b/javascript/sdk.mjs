// Uses E2B's JavaScript SDKs as their documentation does; the environment says where the gateway is.
import assert from 'node:assert/strict'
import { Sandbox } from 'e2b'
import { Sandbox as CodeInterpreter } from '@e2b/code-interpreter'

const text = (data) => new TextDecoder().decode(data)
const sandbox = await Sandbox.create({ timeoutMs: 300_000, metadata: { job: 'js' }, envs: { GREETING: 'hello' } })
try {
  assert.equal((await sandbox.getInfo()).templateId, 'base')
  const found = await Sandbox.list({ query: { metadata: { job: 'js' } } }).nextItems()
  assert.deepEqual(found.map((one) => one.sandboxId), [sandbox.sandboxId])

  const { stdout, stderr } = await sandbox.commands.run('echo $GREETING; echo trouble >&2')
  assert.deepEqual([stdout, stderr], ['hello\n', 'trouble\n'])
  await assert.rejects(sandbox.commands.run('exit 3'), { name: 'CommandExitError', exitCode: 3 })
  await assert.rejects(sandbox.commands.run('sleep 600', { timeoutMs: 1000 }), { name: 'TimeoutError' })
  await assert.rejects(sandbox.commands.run('id', { user: 'root' }), /a sandbox has no root/)
  const cat = await sandbox.commands.run('cat', { background: true, stdin: true })
  await sandbox.commands.sendStdin(cat.pid, 'sent\n')
  await sandbox.commands.closeStdin(cat.pid)
  assert.equal((await cat.wait()).stdout, 'sent\n')

  let seen = ''
  const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => { seen += text(data) } })
  await sandbox.pty.resize(terminal.pid, { cols: 90, rows: 30 })
  await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit\n'))
  await terminal.wait()
  assert.match(seen, /30 90/)

  await sandbox.files.write([{ path: 'dir/a.txt', data: 'one' }, { path: 'dir/b.txt', data: new Blob(['two']) }])
  assert.deepEqual((await sandbox.files.list('dir')).map((one) => one.path), ['/home/user/dir/a.txt', '/home/user/dir/b.txt'])
  assert.equal((await sandbox.files.rename('dir/a.txt', 'dir/c.txt')).name, 'c.txt')
  assert.equal(await sandbox.files.read('dir/c.txt'), 'one')
  assert.equal(text(await sandbox.files.read('dir/b.txt', { format: 'bytes' })), 'two')
  let event
  const happened = new Promise((resolve) => { event = resolve })
  const watcher = await sandbox.files.watchDir('dir', event)
  await sandbox.files.write('dir/new.txt', '1')
  assert.equal((await happened).name, 'new.txt')
  await watcher.stop()
  await sandbox.files.remove('dir')
  assert.equal(await sandbox.files.exists('dir'), false)

  await sandbox.files.write('kept', 'text')
  assert.equal(await sandbox.pause(), true)
  assert.equal(await sandbox.isRunning(), false)
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.equal(await again.files.read('kept'), 'text')
} finally {
  assert.equal(await sandbox.kill(), true)
}
assert.equal(await Sandbox.kill(sandbox.sandboxId), false)

const interpreter = await CodeInterpreter.create({ timeoutMs: 300_000 })
try {
  const done = await interpreter.runCode('x = 1; print("working"); x + 1')
  assert.deepEqual([done.text, done.logs.stdout], ['2', ['working\n']])
  assert.equal((await interpreter.runCode('1 / 0')).error.name, 'ZeroDivisionError')
  const context = await interpreter.createCodeContext()
  assert.equal((await interpreter.runCode('x', { context })).error.name, 'NameError')
} finally {
  await interpreter.kill()
}
console.log('all done')
