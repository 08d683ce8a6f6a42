# Starts OpenCode in a home of its own and keeps what it needs for itself away
# from the commands it will run. Arguments: that home, "fresh" or "again", the
# port, the configuration, the guard, the shell for commands, and "tuned" or not.
set -eu
home=$1 how=$2 port=$3
mask=$(umask)
umask 077
if ! command -v opencode >/dev/null; then
	echo 'there is no program "opencode" on the PATH of the sandbox' >&2
	exit 127
fi
# What is there may have been put there by setup, or by an earlier attempt.
if [ "$how" = fresh ]; then
	rm -rf -- "$home"
fi
config=$home/config/opencode
mkdir -p -- "$home/user" "$home/bin" "$home/data" "$home/state" "$home/cache/opencode/bin" "$config/plugin"
printf '%s' "$4" >"$config/opencode.json"
printf '%s' "$5" >"$config/plugin/guard.js"
printf '%s' "$6" >"$home/bin/bash"
chmod 700 "$home/bin/bash"

# A list of models stands compiled in, megabytes of it: the empty one here
# spares a second of start and a hundred megabytes.
echo '{}' >"$home/models.json"

# Otherwise it installs its plugin package from the npm registry, which takes
# ten seconds of CPU where it can be reached. It looks no further than this.
mkdir -p "$config/node_modules"
echo '{"dependencies":{"@opencode-ai/plugin":"*"}}' >"$config/package.json"
echo '{"lockfileVersion":3,"packages":{"":{"dependencies":{"@opencode-ai/plugin":"*"}}}}' >"$config/package-lock.json"

# Its tools for searching need ripgrep, which it would fetch from GitHub: where
# there is none, the agent searches with commands.
unset OPENCODE_PERMISSION
if ! command -v rg >/dev/null; then
	printf '#!/bin/sh\nexit 1\n' >"$home/cache/opencode/bin/rg"
	chmod 700 "$home/cache/opencode/bin/rg"
	export OPENCODE_PERMISSION='{"glob":"deny","grep":"deny"}'
fi

# Directories of its own, and no proxy: it has nothing to reach but the gateway.
# The shell for commands puts back what was there.
for n in XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME XDG_CACHE_HOME \
	HTTP_PROXY http_proxy HTTPS_PROXY https_proxy ALL_PROXY all_proxy; do
	eval "if [ -n \"\${$n+x}\" ]; then export INSPECT_OWN_$n=\"\$$n\"; unset $n; fi"
done
export XDG_CONFIG_HOME="$home/config" XDG_DATA_HOME="$home/data" XDG_STATE_HOME="$home/state" XDG_CACHE_HOME="$home/cache"
unset OPENCODE_CONFIG OPENCODE_CONFIG_CONTENT OPENCODE_CONFIG_DIR OPENCODE_AUTH_CONTENT OPENCODE_DB
export OPENCODE_MODELS_PATH="$home/models.json"
# Where it looks for the user's .opencode, .claude and .agents.
export OPENCODE_TEST_HOME="$home/user"
# The repository has no say: no plugins, providers, servers, permissions,
# instructions. (The prompt brings its AGENTS.md; see also guard.js.)
export OPENCODE_DISABLE_PROJECT_CONFIG=1 OPENCODE_DISABLE_CLAUDE_CODE=1 OPENCODE_DISABLE_EXTERNAL_SKILLS=1
export OPENCODE_PURE=1 OPENCODE_DISABLE_DEFAULT_PLUGINS=1
# Nothing is fetched or told to anybody.
export OPENCODE_DISABLE_AUTOUPDATE=1 OPENCODE_DISABLE_MODELS_FETCH=1 OPENCODE_DISABLE_LSP_DOWNLOAD=1 OPENCODE_DISABLE_SHARE=1
# Nobody looks at its pages, and it need not watch or index a tree that changes
# under it.
export OPENCODE_DISABLE_EMBEDDED_WEB_UI=1 OPENCODE_EXPERIMENTAL_DISABLE_FILEWATCHER=1 OPENCODE_DISABLE_FFF=1
# A start is short: what its runtime does beside it, collecting garbage and
# optimising what runs seldom, costs more than it brings. Measured: 13 % of the
# CPU seconds until it is ready. A runtime that does not know one of these ends.
if [ "$7" = tuned ]; then
	export BUN_JSC_useConcurrentGC=0
	export BUN_JSC_thresholdForOptimizeAfterWarmUp=3000 BUN_JSC_thresholdForFTLOptimizeAfterWarmUp=200000
fi
# Not in the repository, whose files it would read as its own.
cd "$home/user"
umask "$mask"
exec opencode serve --hostname 127.0.0.1 --port "$port"
