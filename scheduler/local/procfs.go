package local

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"inspect/scheduler"
)

// stat is what we need of /proc/PID/stat.
type stat struct {
	state   byte
	session int
	start   uint64
}

func (s stat) dead() bool { return s.state == 'Z' || s.state == 'X' || s.state == 'x' }

var errStat = errors.New("/proc shows a process in a form we do not know")

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return stat{}, err
	}
	return parseStat(b)
}

// parseStat reads fields 3 (state), 6 (session) and 22 (starttime). Field 2 is
// the program's name in parentheses, which may itself hold anything.
func parseStat(b []byte) (stat, error) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return stat{}, errStat
	}
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 20 || len(f[0]) != 1 {
		return stat{}, errStat
	}
	session, err1 := strconv.Atoi(f[3])
	start, err2 := strconv.ParseUint(f[19], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return stat{}, errStat
	}
	return stat{state: f[0][0], session: session, start: start}, nil
}

func pids() ([]int, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var out []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			out = append(out, pid)
		}
	}
	return out, nil
}

// processes lists the living processes of an account, and those of them in a
// process session.
func processes(session, uid int) (inSession, all []int, err error) {
	every, err := pids()
	if err != nil {
		return nil, nil, err
	}
	for _, pid := range every {
		st, err := readStat(pid)
		if err != nil || st.dead() || ownerOf(pid) != uid {
			continue
		}
		all = append(all, pid)
		if st.session == session {
			inSession = append(inSession, pid)
		}
	}
	return inSession, all, nil
}

// ownerOf is whom a process runs as, -1 if it is gone. Its directory in /proc
// would not do: that of a process that keeps to itself is root's.
func ownerOf(pid int) int {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "Uid:" {
			if uid, err := strconv.Atoi(f[2]); err == nil {
				return uid
			}
		}
	}
	return -1
}

// find looks for the runner of an attempt among all processes. Any process can
// have any command line: one in a sandbox is in another pid namespace, and
// another runner has not the account for which this attempt's directory was made
// before its start.
func (e *Engine) find(a scheduler.Attempt) (pid, uid int, ok bool) {
	uid, ok = e.holder(nameOf(a.Session, a.Generation))
	if !ok {
		return 0, 0, false
	}
	all, err := pids()
	if err != nil {
		return 0, 0, false
	}
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return 0, 0, false
	}
	want := fmt.Sprintf("\x00--session\x00%s\x00--generation\x00%d\x00", a.Session, a.Generation)
	for _, pid := range all {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !bytes.HasPrefix(line, []byte(e.o.Binary+"\x00runner\x00")) || !bytes.Contains(line, []byte(want)) {
			continue
		}
		if ownerOf(pid) != uid {
			continue
		}
		if theirs, err := os.Readlink(filepath.Join(dir, "ns", "pid")); err != nil || theirs != ns {
			continue
		}
		if st, err := readStat(pid); err != nil || st.dead() || st.session != pid {
			continue
		}
		if uid == os.Geteuid() {
			uid = 0 // as a ref has it
		}
		return pid, uid, true
	}
	return 0, 0, false
}
