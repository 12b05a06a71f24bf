//go:build linux || windows

package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What the jobs of one user hold is bounded by max_bytes_per_user, ended jobs included, also over a restart.
func TestUserBytesAreBounded(t *testing.T) {
	q := serving(t, "--workers", "1")
	q.must("config", "set", "max_bytes_per_user", "2MiB")
	file := filepath.Join(t.TempDir(), "job")
	if err := os.WriteFile(file, []byte(`{"command": "cat", "delay": "1h", "stdin": "`+strings.Repeat("x", 250<<10)+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	full := func(when string) {
		t.Helper()
		r := q.cli("enqueue", "--file", file)
		if r.code != 5 || !strings.Contains(r.err, "max_bytes_per_user: ") || !strings.Contains(r.err, "of 2097152 bytes") || !strings.Contains(r.err, "queuectl rm") {
			t.Errorf("%s: exit code %d, %s", when, r.code, r.err)
		}
		if out := q.must("status"); !strings.Contains(out, "of 2.0 MiB used") {
			t.Errorf("%s: status does not show the bytes: %s", when, out)
		}
		if out := q.must("status", "--json"); !strings.Contains(out, `"max_bytes_per_user":2097152`) || !strings.Contains(out, `"users_near_quota":[{`) {
			t.Errorf("%s: status --json does not show the bytes: %s", when, out)
		}
	}
	if out := q.must("status"); strings.Contains(out, "used") {
		t.Errorf("status shows bytes that are far from the limit: %s", out)
	}
	if out := q.must("status", "--verbose"); !strings.Contains(out, "Your jobs:  0.0 KiB of 2.0 MiB used") {
		t.Errorf("status --verbose: %s", out)
	}
	for range 8 {
		q.must("enqueue", "--file", file)
	}
	full("a ninth job of 250 KiB in 2 MiB")
	q.must("cancel", "--all", "--yes")
	full("once all are cancelled")
	q.kill()
	q.start("--workers", "1")
	full("after a restart")
	if r := q.cli("whoami"); !strings.Contains(r.out, "of 2.0 MiB used") {
		t.Errorf("whoami: %s%s", r.out, r.err)
	}
	if r := q.cli("doctor"); !strings.Contains(r.out, "of 2097152 bytes; new ones are refused") {
		t.Errorf("doctor: %s%s", r.out, r.err)
	}
	q.must("rm", "1", "2")
	q.must("enqueue", "--file", file)
	q.must("config", "set", "max_bytes_per_user", "20MiB")
	q.must("run", "head -c 60000 /dev/zero | tr '\\0' x") // job 10
	q.must("run", "head -c 60000 /dev/zero | tr '\\0' y") // job 11
	q.must("config", "set", "max_bytes_per_user", "1800KiB")
	q.until("the oldest output is removed", 30*time.Second, func() bool { return !strings.Contains(q.cli("logs", "10").out, "xxx") })
}
