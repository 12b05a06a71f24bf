//go:build unix && !race

package handlers

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/doctor"
)

// testAuthorizer determines the rights of the peers in this test.
type testAuthorizer struct {
	*access.Admission
	*access.Rights
}

// maxInputBytes is the maximum length of the inputs: slightly less than the maximum length of a line.
const maxInputBytes = control.MaxLineBytes - 4096

// repeatToSize returns a value of at most maxInputBytes bytes: the prefix, as many copies of the repeated text
// as fit, and the suffix.
func repeatToSize(prefix, repeated, suffix string) string {
	return prefix + strings.TrimSuffix(strings.Repeat(repeated+",", maxInputBytes/(len(repeated)+1)), ",") + suffix
}

// objectWithMembers returns a JSON object with n members with different names. If n members do not fit, the object has
// as many as fit.
func objectWithMembers(n int, value string) string {
	var b strings.Builder
	b.WriteString(`{"a":` + value)
	for i := 0; i < n && b.Len() < maxInputBytes-64-len(value); i++ {
		fmt.Fprintf(&b, `,"%x":%s`, i, value)
	}
	return b.String() + "}"
}

// expensiveValueGenerators contains functions that generate values. Each value is expensive to parse for a different
// reason.
var expensiveValueGenerators = map[string]func() string{
	"nested": func() string { return repeatToSize("[", strings.Repeat("[", 29)+strings.Repeat("]", 29), "]") },
	"nested objects": func() string {
		return repeatToSize("[", strings.Repeat(`{"a":`, 28)+"1"+strings.Repeat("}", 28),
			"]")
	},
	"members":            func() string { return objectWithMembers(1<<30, "1") },
	"members of text":    func() string { return objectWithMembers(16_000, `"`+strings.Repeat("x", 400)+`"`) },
	"a member repeated":  func() string { return repeatToSize("{", `"a":1`, "}") },
	"ids":                func() string { return repeatToSize("[", `"a"`, "]") },
	"numbers":            func() string { return repeatToSize("[", `1`, "]") },
	"empty texts":        func() string { return repeatToSize("[", `""`, "]") },
	"long texts":         func() string { return repeatToSize("[", `"`+strings.Repeat("x", 800)+`"`, "]") },
	"text":               func() string { return `"` + strings.Repeat("x", maxInputBytes) + `"` },
	"text of escapes":    func() string { return `"` + strings.Repeat(`\u0001`, maxInputBytes/6) + `"` },
	"text of surrogates": func() string { return `"` + strings.Repeat(`\ud83d\ude00`, maxInputBytes/12) + `"` },
	"text of quotes":     func() string { return `"` + strings.Repeat(`\"`, maxInputBytes/2) + `"` },
	"digits":             func() string { return strings.Repeat("7", maxInputBytes) },
	"a fraction":         func() string { return "0." + strings.Repeat("7", maxInputBytes) },
	"a text of digits":   func() string { return `"` + strings.Repeat("7", maxInputBytes) + `s"` },
	"spaces":             func() string { return strings.Repeat(" ", maxInputBytes) + "1" },
}

// requestLine returns the line of a request.
func requestLine(method, params string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`
}

// batchRequestLine returns a request that adds n jobs to a batch and does not commit the batch. If n jobs do not fit,
// the request has as many as fit.
func batchRequestLine(maxJobs int, jobJSON func(i int) string) string {
	var b strings.Builder
	b.WriteString(`{"batch":"b","jobs":[`)
	for i := range maxJobs {
		j := jobJSON(i)
		if b.Len()+len(j) > maxInputBytes {
			break
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(j)
	}
	return requestLine("enqueue.batch", b.String()+"]}")
}

// expensiveRequestLines contains complete request lines that are expensive to parse.
var expensiveRequestLines = map[string]func() string{
	"an envelope of members": func() string { return `{"id":1,"method":"hello",` + objectWithMembers(1<<30, "1")[1:] },
	"an envelope repeated":   func() string { return `{"id":1,` + repeatToSize("", `"params":1`, "}") },
	"a long method":          func() string { return requestLine(strings.Repeat("x", maxInputBytes), "{}") },
	"a long id": func() string {
		return `{"id":"` + strings.Repeat("x", maxInputBytes) + `","method":"hello"}`
	},
	"padding": func() string { return strings.Repeat(" ", maxInputBytes) + requestLine("list", "{}") },
	"no JSON at the end": func() string {
		return strings.TrimSuffix(requestLine("list", repeatToSize("[", "1", "]")),
			"}")
	},
	"a text without end":   func() string { return `{"id":"` + strings.Repeat(`\u0001`, maxInputBytes/6) },
	"too deep":             func() string { return strings.Repeat("[", maxInputBytes) },
	"not UTF-8 at the end": func() string { return `{"id":"` + strings.Repeat("é", maxInputBytes/2) + "\xff\"}" },
	"jobs of nothing":      func() string { return batchRequestLine(1<<30, func(int) string { return "{}" }) },
	"jobs, all there may be": func() string {
		return batchRequestLine(queue.MaxJobsPerRequest,
			func(int) string { return `{"command":"true"}` })
	},
	"jobs with much to be set": func() string {
		env := `{"command":"true","env":{"A":"` + strings.Repeat("x", maxInputBytes/queue.MaxJobsPerRequest-50) + `"}}`
		return batchRequestLine(queue.MaxJobsPerRequest, func(int) string { return env })
	},
	"jobs with many variables": func() string {
		env := `{"command":"true","env":` + objectWithMembers(maxInputBytes/queue.MaxJobsPerRequest/13, `"1"`) + `}`
		return batchRequestLine(queue.MaxJobsPerRequest, func(int) string { return env })
	},
	"jobs with labels": func() string {
		job := `{"command":"true","labels":` +
			objectWithMembers(queue.MaxLabels-1, `"`+strings.Repeat(`\u0001`, 30)+`"`) + `}`
		return batchRequestLine(queue.MaxJobsPerRequest, func(int) string { return job })
	},
	"jobs with long arguments": func() string {
		job := `{"argv":["` + strings.Repeat(`x","`, 1900) + `"]}`
		return batchRequestLine(queue.MaxJobsPerRequest, func(int) string { return job })
	},
	"jobs with all arguments there may be": func() string {
		job := `{"argv":["` + strings.Repeat(`x","`, control.MaxArgEnvCount/queue.MaxJobsPerRequest-2) + `"]}`
		return batchRequestLine(queue.MaxJobsPerRequest, func(int) string { return job })
	},
	"the largest jobs": func() string {
		job := `{"argv":["` + strings.Repeat("x", 131_000) + `"],"env":{"A":"` + strings.Repeat("y", 131_000) + `","B":"` +
			strings.Repeat("z", 131_000) + `"},"stdin":"` + strings.Repeat("z", 256<<10) + `"}`
		return batchRequestLine(queue.MaxJobsPerRequest, func(int) string { return job })
	},
	"the largest jobs of escapes": func() string {
		e := func(n int) string { return strings.Repeat(`\u0001`, n) }
		job := `{"argv":["` + e(131_000) + `"],"env":{"A":"` + e(131_000) + `","B":"` + e(131_000) + `"},"stdin":"` +
			e(256<<10) + `"}`
		return batchRequestLine(queue.MaxJobsPerRequest, func(int) string { return job })
	},
	"jobs with faults, the last of them": func() string {
		return batchRequestLine(queue.MaxJobsPerRequest, func(i int) string {
			if i == queue.MaxJobsPerRequest-1 {
				return objectWithMembers(10_000, "1")
			}
			return `{"command":"` + strings.Repeat("x", 7000) + `"}`
		})
	},
	"jobs with the same id": func() string {
		return batchRequestLine(queue.MaxJobsPerRequest, func(int) string { return `{"command":"true","id":"same"}` })
	},
	"names that are not there": func() string {
		var b strings.Builder
		for i := range control.MaxJobIDs {
			fmt.Fprintf(&b, `,"%0128d"`, i)
		}
		return requestLine("cancel", `{"ids":[`+b.String()[1:]+`]}`)
	},
	"names that are none": func() string {
		return requestLine("cancel", `{"ids":`+repeatToSize("[",
			`"`+strings.Repeat(`\u0001`, maxInputBytes/control.MaxJobIDs/6-1)+`"`, "]")+`}`)
	},
}

// commonExpensiveShapeNames lists the shapes (values that are expensive to parse) that the test uses for every kind of
// parameter. The other shapes are used only for parameters with a special parser.
var commonExpensiveShapeNames = []string{"nested", "text of escapes", "a text of digits", "digits"}

// requestLineGenerators returns functions that generate all inputs of the test, by name. For each shape, an input
// has that shape as a known parameter, as an unknown parameter, or as a field of a job.
func requestLineGenerators() map[string]func() string {
	all := map[string]func() string{}
	for name, line := range expensiveRequestLines {
		all[name] = line
	}
	kinds := map[string]bool{}
	add := func(kind, method, prefix, suffix string, names ...string) {
		for _, name := range names {
			if !kinds[kind+name] {
				kinds[kind+name] = true
				all[method+" "+prefix+": "+name] = func() string {
					return requestLine(method, prefix+expensiveValueGenerators[name]()+suffix)
				}
			}
		}
	}
	every := slices.Sorted(maps.Keys(expensiveValueGenerators))
	for _, m := range control.Schemas() {
		if m.Method == "enqueue" || m.Method == "enqueue.batch" || m.Method == "schedule.add" {
			continue // skip these methods, since their parameters are added below
		}
		properties, _ := m.Params["properties"].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			kind, _ := properties[name].(map[string]any)
			delete(kind, "description")
			raw, _ := json.Marshal(kind)
			add(string(raw), m.Method, `{"`+name+`":`, "}", commonExpensiveShapeNames...)
		}
	}
	for _, f := range queue.SpecFields() {
		add(fmt.Sprint("field ", f.Kind, f.Name == "id", f.Name == "umask", f.Name == "labels"), "enqueue", `{"`+f.Name+`":`,
			"}", commonExpensiveShapeNames...)
	}
	add("unknown", "list", `{"nosuch":`, "}", every...)
	add("ids", "cancel", `{"ids":`, "}", every...)
	add("argv", "enqueue", `{"argv":`, "}", commonExpensiveShapeNames...)
	add("env", "enqueue", `{"command":"true","env":`, "}", every...)
	add("schedule", "schedule.add", `{"name":"a","cron":"@hourly","command":"true","env":`, "}", every...)
	add("cron", "schedule.add", `{"name":"a","command":"true","cron":`, "}", commonExpensiveShapeNames...)
	add("jobs", "enqueue.batch", `{"jobs":`, "}", every...)
	add("set", "edit", `{"id":"a","set":{"env":`, "}}", commonExpensiveShapeNames...)
	add("params", "show", "", "", commonExpensiveShapeNames...)
	return all
}

// processCPUTime returns the processor time that this process has used.
func processCPUTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Handling an input of 8 MiB of any shape takes at most half a second of processor time and 64 MiB of memory.
//
// The time is that of this process, which contains the service and the client. The memory is the growth of
// the live heap. If the total of all allocations is below the limit, the growth is too; otherwise the input
// is sent again while the live heap is measured every few milliseconds. On two cores, the slowest input takes
// 0.3 s (a deep list of times), and the largest takes 53 MiB (the largest jobs).
func TestExpensiveRequestsTakeBoundedResources(t *testing.T) {
	skip.IfShort(t, "takes long; make test-long runs it")
	const most, mostHeap = 500 * time.Millisecond, 64 << 20
	ask := startRequester(t)
	for name, input := range requestLineGenerators() {
		line := []byte(input() + "\n")
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		began := processCPUTime(t)
		answer := ask(line)
		took := processCPUTime(t) - began
		runtime.ReadMemStats(&after)
		grown := after.TotalAlloc - before.TotalAlloc
		if grown > mostHeap {
			grown = peakHeapGrowthBytes(func() { ask(line) })
		}
		if answer == "" || strings.Contains(answer, `"internal"`) {
			t.Errorf("%s: answered %.300q", name, answer)
		}
		if took > most || grown > mostHeap {
			t.Errorf("%s: %v and %d MiB, want at most %v and %d MiB: %.200s", name, took, grown>>20, most, mostHeap>>20, answer)
		}
	}
}

// startRequester returns a function that sends a line to a new service and returns the reply.
func startRequester(t *testing.T) func(line []byte) (answer string) {
	s := newSQLiteTestAPIWith(t, testAPIOptions{paths: config.Paths{StateDir: t.TempDir()}})
	s.enqueueJobs(t, draftWithID("a"))
	path := filepath.Join(t.TempDir(), "s")
	l, err := socket.Listen(path, socket.Perms{Mode: 0o600, GID: -1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	limits := control.ConnectionLimits{MaxConnections: func() (all, user int) {
		return doctor.MaxConnections(s.Settings.CurrentConfig())
	}}
	var serving sync.WaitGroup
	serving.Go(func() {
		control.NewServer(s.api, limits, &testAuthorizer{s.admission, s.Rights}, s.UserLimits, s.Log).Run(ctx, l)
	})
	t.Cleanup(func() {
		stop()
		serving.Wait()
	})
	return func(line []byte) string {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Minute))
		var writing sync.WaitGroup
		defer writing.Wait()
		// Write in the background, since the service stops reading an input that it rejects.
		writing.Go(func() { c.Write(line) })
		in := bufio.NewReaderSize(c, 64<<10)
		for {
			text, err := in.ReadString('\n')
			// Skip the notifications of a stream. Unlike replies, they have a member "method".
			if err != nil || !strings.Contains(text, `"method":`) {
				return text
			}
		}
	}
}
