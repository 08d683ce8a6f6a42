package forward

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"inspect/checks/redact"
)

// Bounds of the search for who connects. What is searched is made by the
// sandbox's commands; one that makes it long goes without a name.
const (
	maxTable   = 4 << 20 // bytes of one table of connections
	maxSearch  = time.Second
	maxCmdline = 4 << 10
)

// who finds the process of this network namespace that holds the connection
// from client to server. The zero name: it cannot be found.
func who(client, server netip.AddrPort) name {
	deadline := time.Now().Add(maxSearch)
	inode := socketInode(client, server, deadline)
	if inode == "" {
		return name{}
	}
	pid := holder("socket:["+inode+"]", deadline)
	if pid == 0 {
		return name{}
	}
	return name{PID: pid, Command: commandOf(pid)}
}

// socketInode is the number of the client's socket.
func socketInode(client, server netip.AddrPort, deadline time.Time) string {
	for _, t := range []struct {
		file string
		wide bool // 16-byte addresses; 4-byte ones of a wide socket are mapped
	}{{"/proc/net/tcp", false}, {"/proc/net/tcp6", true}} {
		if !t.wide && !client.Addr().Unmap().Is4() {
			continue
		}
		f, err := os.Open(t.file)
		if err != nil {
			continue
		}
		inode := inodeIn(io.LimitReader(f, maxTable), tableForm(client, t.wide), tableForm(server, t.wide), deadline)
		f.Close()
		if inode != "" {
			return inode
		}
	}
	return ""
}

// inodeIn searches a table in the form of /proc/net/tcp: number, local address,
// remote address, state, queues, timer, retransmits, uid, timeout, inode.
func inodeIn(table io.Reader, local, remote string, deadline time.Time) string {
	lines := bufio.NewScanner(table)
	for n := 0; lines.Scan(); n++ {
		if n%256 == 255 && time.Now().After(deadline) {
			return ""
		}
		if !bytes.Contains(lines.Bytes(), []byte(local)) {
			continue
		}
		f := strings.Fields(lines.Text())
		if len(f) > 9 && f[1] == local && f[2] == remote && f[9] != "0" {
			return f[9]
		}
	}
	return ""
}

// tableForm is how /proc/net/tcp writes an address: 32-bit words, each in the
// machine's byte order, then the port.
func tableForm(a netip.AddrPort, wide bool) string {
	var b []byte
	if addr := a.Addr().Unmap(); addr.Is4() && !wide {
		x := addr.As4()
		b = x[:]
	} else {
		x := addr.As16()
		b = x[:]
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	var port [2]byte
	binary.BigEndian.PutUint16(port[:], a.Port())
	return strings.ToUpper(hex.EncodeToString(b) + ":" + hex.EncodeToString(port[:]))
}

// holder is a process with a descriptor that leads to what. The init itself is
// left out: it is process 1 and undumpable.
func holder(what string, deadline time.Time) int {
	proc, err := os.Open("/proc")
	if err != nil {
		return 0
	}
	defer proc.Close()
	for {
		names, err := proc.Readdirnames(256)
		for _, n := range names {
			pid, perr := strconv.Atoi(n)
			if perr != nil || pid <= 1 {
				continue
			}
			if holds("/proc/"+n+"/fd", what, deadline) {
				return pid
			}
			if time.Now().After(deadline) {
				return 0
			}
		}
		if err != nil {
			return 0
		}
	}
}

func holds(dir, what string, deadline time.Time) bool {
	fds, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer fds.Close()
	for {
		names, err := fds.Readdirnames(256)
		for _, n := range names {
			if to, err := os.Readlink(dir + "/" + n); err == nil && to == what {
				return true
			}
		}
		if err != nil || time.Now().After(deadline) {
			return false
		}
	}
}

// commandOf is a process's arguments as one line.
func commandOf(pid int) string {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxCmdline))
	if err != nil {
		return ""
	}
	return clean(strings.ReplaceAll(strings.TrimRight(string(b), "\x00"), "\x00", " "))
}

// clean makes a command one line of valid, visible text, cut to maxCommand bytes.
func clean(s string) string {
	s = strings.Join(strings.Fields(redact.Visible(s)), " ")
	if len(s) <= maxCommand {
		return s
	}
	return strings.ToValidUTF8(s[:maxCommand], "")
}
