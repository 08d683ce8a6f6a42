package main

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

func nomadCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "nomad", Short: "Things for a cluster that runs HashiCorp Nomad"}
	cmd.AddCommand(nodeJobCommand())
	return cmd
}

// nodeJob is what the job of node daemons is made of.
type nodeJob struct {
	data, grantKey, owner                  string
	name, control, binary, tokenFile, root string
	namespace, pool                        string
	datacenters                            []string
	memoryMB                               int
	gitBase                                string
	further                                []string // flags of inspect node
}

func nodeJobCommand() *cobra.Command {
	var j nodeJob
	cmd := &cobra.Command{
		Use:   "node-job [-- FLAGS OF INSPECT NODE]",
		Short: "Print the system job that runs a node daemon on each machine of a node pool",
		Long: `Print the Nomad system job that runs a node daemon on each machine of a node pool, in HCL, for
` + "`nomad job run -`" + `. What stands after -- is added to the daemons' flags: -- --store zfs --zfs-root tank/inspect
--registry-auth /etc/inspect/registry.json, for example: paths are those of the nodes.
There is no secret in it: each node has the token that ` + "`inspect node add`" + ` gave it in a file of its own.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			j.further = args
			if err := j.complete(); err != nil {
				return err
			}
			return j.print(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&j.data, "data", "/var/lib/inspect", "data directory of inspect serve, for its key and its id")
	f.StringVar(&j.grantKey, "grant-key", "", "the control plane's public key, hexadecimal (default: from --data)")
	f.StringVar(&j.owner, "owner", "", "id of the installation (default: from --data)")
	f.StringVar(&j.control, "control", "", "address of the control plane's machine listener as nodes reach it")
	f.StringVar(&j.name, "name", "${node.unique.name}", "name of each node, as inspect node add was given it; Nomad fills in what stands in ${…}")
	f.StringVar(&j.binary, "binary", "/usr/local/bin/inspect", "path of inspect on the nodes")
	f.StringVar(&j.tokenFile, "token-file", "/etc/inspect/node.token", "path, on each node, of the file with its token")
	f.StringVar(&j.root, "root", "/var/lib/inspect/node", "directory of snapshots, clones and mirrors on the nodes")
	f.StringVar(&j.namespace, "namespace", "inspect-nodes", "namespace of the job: not that of the sessions, whose token could change it")
	f.StringVar(&j.pool, "pool", "inspect", "node pool")
	f.StringSliceVar(&j.datacenters, "datacenters", []string{"*"}, "datacenters")
	f.IntVar(&j.memoryMB, "memory", 1024, "MiB that the daemon and git in its mirrors may take; sandboxes are not in it")
	f.StringVar(&j.gitBase, "github-git", "https://github.com", "as of inspect serve")
	return withEnvironment(cmd)
}

// complete fills in what the data directory says, and refuses what could be no
// job.
func (j *nodeJob) complete() error {
	if j.control == "" {
		return usagef("--control is missing: the address of the proxy in front of --listen-machines, https:// and its host")
	}
	if err := checkControl(j.control); err != nil {
		return err
	}
	data, err := filepath.Abs(j.data)
	if err != nil {
		return usagef("--data: %w", err)
	}
	if j.grantKey == "" {
		if j.grantKey, err = publicGrantKey(filepath.Join(data, "private")); err != nil {
			return err
		}
	}
	if j.owner == "" {
		j.owner = ownerOf(data)
	}
	for _, s := range slices.Concat([]string{j.name, j.binary, j.tokenFile, j.root, j.namespace, j.pool, j.gitBase, j.owner, j.grantKey}, j.datacenters, j.further) {
		if s == "" || strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
			return usagef("%q cannot stand in a job", s)
		}
	}
	return nil
}

func (j *nodeJob) print(w io.Writer) error {
	args := append([]string{
		"node", "--name", j.name, "--root", j.root, "--control", j.control, "--token-file", j.tokenFile,
		"--grant-key", j.grantKey, "--owner", j.owner, "--github-git", j.gitBase,
		"--nomad-address", "unix://${NOMAD_SECRETS_DIR}/api.sock", "--nomad-token-file", "${NOMAD_SECRETS_DIR}/nomad_token",
	}, j.further...)
	_, err := fmt.Fprintf(w, nodeJobHCL, j.namespace, quoted(j.namespace), quoted(j.pool), quotedList(j.datacenters, ", "), quoted(j.binary),
		"\n          "+quotedList(args, ",\n          ")+",\n        ", j.memoryMB)
	return err
}

func quoted(s string) string { return strconv.Quote(s) }

func quotedList(list []string, sep string) string {
	var out []string
	for _, s := range list {
		out = append(out, quoted(s))
	}
	return strings.Join(out, sep)
}

// nodeJobHCL: the daemon's SIGTERM is for itself alone. Nomad kills what is left
// in the task's own control group; sandboxes are in groups of ours.
const nodeJobHCL = `# Node daemons of Inspect, one on each machine of the pool. No secret is in here.
# They tell their agent which snapshots they have, for which the job needs a policy:
#   nomad acl policy apply -namespace %s -job inspect-node inspect-node policy.hcl
#   policy.hcl:  node { policy = "write" }
job "inspect-node" {
  type        = "system"
  namespace   = %s
  node_pool   = %s
  datacenters = [%s]
  priority    = 80 # before sessions

  update {
    max_parallel = 1
  }

  group "node" {
    # It is always started again. Runners wait for it.
    restart {
      interval = "5m"
      attempts = 20
      delay    = "5s"
      mode     = "delay"
    }

    task "daemon" {
      driver = "raw_exec"
      user   = "root"

      # A daemon that is told to end leaves the sandboxes running, and the next one
      # finds them. After a drain nothing runs any more.
      kill_signal  = "SIGTERM"
      kill_timeout = "30s"

      # Proves the daemon to the agent of its machine.
      identity {
        file        = true
        change_mode = "noop"
      }

      config {
        command = %s
        args = [%s]
      }

      logs {
        max_files     = 5
        max_file_size = 10
      }

      resources {
        cpu    = 200
        memory = %d
      }
    }
  }
}
`
