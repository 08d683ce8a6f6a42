// OpenCode loads the plugins and the references of a repository's .opencode and
// opencode.json whatever its switches say (1.18.33). This file, which it loads
// before those, leaves it nothing of them.
Bun.plugin({
  name: "inspect-guard",
  setup(build) {
    build.onLoad({ filter: /^(?!\/\$bunfs\/)/ }, () => ({ contents: "export default {}", loader: "js" }))
  },
})

export default {
  id: "inspect-guard",
  async setup(opencode) {
    await opencode.reference.transform((all) => {
      for (const [name] of all.list()) all.remove(name)
    })
    await opencode.reference.reload()
  },
}
