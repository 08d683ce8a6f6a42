package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/proc"
)

// mark is how a sandbox is found again where no cgroup holds it: a file in
// RunDir that names its init. Without a RunDir only the lifeline ends what an
// earlier process has left.
type mark struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // in clock ticks after boot: the number alone may be another's
	Boot  string `json:"boot"`
}

func markOf(pid int) (mark, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return mark{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return mark{}, err
	}
	// After the name, which may hold anything, come the fields from the third on.
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) < 20 {
		return mark{}, fmt.Errorf("/proc/%d/stat cannot be read", pid)
	}
	return mark{PID: pid, Start: string(f[19]), Boot: strings.TrimSpace(string(boot))}, nil
}

func (m mark) alive() bool {
	now, err := markOf(m.PID)
	return err == nil && now == m
}

func (l *Launcher) markFile(id string) string {
	return filepath.Join(l.opt.RunDir, "sandboxes", id+".json")
}

func (l *Launcher) writeMark(id string, pid int) error {
	if l.opt.RunDir == "" {
		return nil
	}
	m, err := markOf(pid)
	if err != nil {
		return err
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	file := l.markFile(id)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	tmp := file + ".new"
	if err := os.WriteFile(tmp, b, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, file)
}

func (l *Launcher) readMark(id string) (m mark, err error) {
	if l.opt.RunDir == "" {
		return m, os.ErrNotExist
	}
	b, err := os.ReadFile(l.markFile(id))
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(b, &m)
}

func (l *Launcher) removeMark(id string) error {
	if l.opt.RunDir == "" {
		return nil
	}
	if err := os.Remove(l.markFile(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (l *Launcher) listMarks() (ids []string, err error) {
	if l.opt.RunDir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(filepath.Join(l.opt.RunDir, "sandboxes"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), ".json"); ok && validID.MatchString(id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, err
}

func (l *Launcher) reapMark(ctx context.Context, id string) error {
	m, err := l.readMark(id)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errors.Join(err, l.removeMark(id))
	}
	fd, err := unix.PidfdOpen(m.PID, 0)
	if err == nil {
		defer unix.Close(fd)
		// Opened first, compared then: now the number stays this process's.
		for m.alive() {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			if err := proc.Sleep(ctx, proc.System(), 10*time.Millisecond); err != nil {
				return fmt.Errorf("end process %d of sandbox %s: %w", m.PID, id, err)
			}
		}
	}
	return l.removeMark(id)
}
