package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/queuectl/queuectl/runner/wire"
)

// exampleFrames returns frames of all types, with all fields set.
func exampleFrames() []wire.Frame {
	l := wire.Lease{Seq: 7, Fence: 1 << 40}
	a := wire.Attempt{Lease: l, TableSlot: 3, PID: 4711, StartedAtMillis: 1_700_000_000_000}
	return []wire.Frame{
		&wire.Hello{ProtocolVersion: 1, Epoch: 9, ServiceVersion: "v"},
		&wire.RunnerSettings{WorkerCount: 4, SettleDelay: 5 * time.Millisecond, StopTimeout: time.Second},
		&wire.StartAttempt{Lease: l, Queue: "q", Position: wire.QueuePosition{Rank: -1, Seq: 7, IsJustBeforeJob: true},
			Argv: []string{"a", ""},
			Env:  []string{"A=b"}, Cwd: "/", Umask: 0o22, Stdin: "x\x00",
			Timeouts:         wire.Timeouts{Timeout: 1, KillAfter: 2, OutputGrace: 3},
			OutputLimitBytes: 4, AllowBackground: true, StartDeadlineMillis: 5, AccountUID: 1000, StartDeadlineBootMillis: 6,
			MemoryBytes: 7, MilliCPUs: 8, MaxTasks: 9, Nice: -3, MaxOpenFiles: 99, TTY: true,
			Secrets: []string{"S=/s"}, MaskSecrets: true, DependencyResults: []byte("[]")},
		&wire.DropStart{Lease: l}, &wire.EndAttempt{Lease: l, EndCause: 5, GracePeriod: time.Second},
		&wire.ReportAttemptImmediately{Lease: l},
		&wire.SignalAttempt{Lease: l, SignalNumber: 10}, &wire.AckResults{Leases: []wire.Lease{l, {}}},
		&wire.ReadOutput{Lease: l, RequestID: 1, StreamCursors: [2]int64{2, 3}, WaitForOutput: true},
		&wire.PurgeOutputs{RequestID: 2, OutputRefs: []string{"1-2"}},
		&wire.PurgeOutputsReply{RequestID: 2}, &wire.Shutdown{},
		&wire.HelloReply{ProtocolVersion: 1, RunnerVersion: "v", RunnerPID: 2, UnendedAttempts: []wire.Attempt{a, a},
			UnacknowledgedLeases: []wire.Lease{l},
			Enforcements: []wire.LimitEnforcement{{LimitName: "memory", EnforcementExtent: 1, Mechanism: "RLIMIT_AS"},
				{}}}, &wire.HelloRefusal{NewestEpoch: 3},
		&wire.StartReport{Attempt: a}, &wire.DropStartReply{Lease: l, StartDropped: true},
		&wire.StuckAttemptsReport{Attempts: []wire.Attempt{a,
			a}},
		&wire.Result{Attempt: a, EndedAtMillis: 1, EndCause: 2, TimedOut: true, ResourceShortage: true,
			HasStuckProcesses: true, ExitCode: -1,
			Signal: 9, Error: "e", CPUTime: 3, PeakRSSBytes: 4, EndedLeftoverCount: 5, DroppedOutputBytes: 6, Output: []byte{0,
				1}, OutputRef: "7-8",
			ResultJSON: []byte("{}"), ResultError: "v", Progress: wire.Progress{ReportedAtMillis: 1, Percent: 40, Text: "t"}},
		&wire.ReadOutputReply{RequestID: 1, StreamCursors: [2]int64{2, 3}, OutputComplete: true, AttemptUnknown: true,
			OutputChunks: []byte("x")},
		&wire.EndProcessTrees{RequestID: 1, RunnerName: "7.ab",
			Attempts: []wire.Attempt{a}}, &wire.RemoveDeadRunnerDir{RunnerName: "7.ab"},
		&wire.EndProcessTreesReply{RequestID: 1, RunnerStartedThisBoot: true,
			StuckProcesses:      []wire.RemainingProcess{{PID: 2, PGID: 3, Cookie: "c"}},
			LeasesWithProcesses: []wire.Lease{l}, Error: "e"},
		&wire.TypeInput{Lease: l, RequestID: 1, Data: []byte("x")}, &wire.ResizeTerminal{Lease: l, Rows: 24, Cols: 80},
		&wire.TypeInputReply{RequestID: 1, WrittenBytes: 2, NoTerminal: true},
		&wire.PauseAttempt{Lease: l, RequestID: 1, Paused: true}, &wire.PauseReply{RequestID: 1, UnchangedProcessCount: 2,
			AttemptNotRunning: true},
		&wire.ProgressReport{Lease: l, Progress: wire.Progress{ReportedAtMillis: 1, Percent: 40, Text: "t"}},
		&wire.Result{Attempt: a, ExitCode: 3, PeakTasks: 10},
		&wire.StartAttempt{Lease: l, NoNewPrivileges: true},
		&wire.ExtendLeases{Duration: time.Second, ExpiryBootMillis: 5},
		&wire.Result{Attempt: a, ReachedMemoryLimit: true}, &wire.Result{Attempt: a, PeakTasks: 10, ReachedMemoryLimit: true},
		&wire.TypeInputReply{RequestID: 1, WrittenBytes: 2, TerminalModeControls: "m"},
	}
}

// fillRandom sets every field of a frame to a random value.
func fillRandom(t *rapid.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fillRandom(t, v.Field(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			fillRandom(t, v.Index(i))
		}
	case reflect.Slice:
		n := rapid.IntRange(0, 3).Draw(t, "len")
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fillRandom(t, v.Index(i))
		}
	case reflect.Int64:
		v.SetInt(rapid.Int64().Draw(t, "n"))
	case reflect.Uint8:
		v.SetUint(uint64(rapid.Byte().Draw(t, "b")))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "flag"))
	case reflect.String:
		v.SetString(rapid.String().Draw(t, "text"))
	default:
		t.Fatalf("a field of kind %s", v.Kind())
	}
}

// ParseFrame returns the frame that AppendFrame has encoded, with the same fields. It ignores the bytes after the
// frame.
func TestFramesAreReadAsWritten(t *testing.T) {
	kinds := map[string]bool{}
	for _, f := range exampleFrames() {
		raw := wire.AppendFrame(nil, f)
		kinds[fmt.Sprint(raw[4])] = true
		got, n, err := wire.ParseFrame(append(raw, "rest"...))
		if err != nil || n != len(raw) || !reflect.DeepEqual(got, f) {
			t.Errorf("Parse returned %+v, %d, %v\nwant %+v, %d", got, n, err, f, len(raw))
		}
	}
	if len(kinds) != 29 {
		t.Errorf("%d kinds of frames are tested, want 29", len(kinds))
	}
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.SampledFrom(exampleFrames()).Draw(t, "frame")
		fillRandom(t, reflect.ValueOf(f).Elem())
		raw := wire.AppendFrame([]byte("before"), f)[6:]
		got, n, err := wire.ParseFrame(raw)
		if err != nil || n != len(raw) || !bytes.Equal(wire.AppendFrame(nil, got), raw) || fmt.Sprint(got) != fmt.Sprint(f) {
			t.Fatalf("Parse returned %+v, %d, %v\nwant %+v", got, n, err, f)
		}
	})
}

// encodedFrames contains the encoding of each frame that the function frames returns, without the length, in
// hexadecimal. Programs of other versions use this encoding, so no existing entry may change. New types of
// frames are added at the end.
var encodedFrames = []string{
	"0102120176",
	"020880ade20480a8d6b907",
	"030e8080808080400171010e01d00f040161000203413d62012f24027800000200040608010a0c0e10120105c6010204533d2f7301025b5d",
	"040e808080808040",
	"050e8080808080400a80a8d6b907",
	"060e808080808040",
	"0b0e80808080804014",
	"07040e8080808080400000",
	"080e80808080804002040601",
	"09040203312d32",
	"1604",
	"0a",
	"0e02017604040e80808080804006ce4980a0abfef9620e80808080804006ce4980a0abfef962020e80808080804004066d656d6f72790209524c494d49545f4153000000",
	"0f06",
	"100e80808080804006ce4980a0abfef962",
	"110e80808080804001",
	"12040e80808080804006ce4980a0abfef9620e80808080804006ce4980a0abfef962",
	"130e80808080804006ce4980a0abfef9620204010001010112016506080a0c02000103372d38027b7d017602500174",
	"1402040601010178",
	"0c0204372e6162020e80808080804006ce4980a0abfef962",
	"0d04372e6162",
	"1502010204060163020e8080808080400165",
	"170e808080808040020178",
	"180e80808080804030a001",
	"19020401",
	"1a0e8080808080400201",
	"1b020401",
	"1c0e80808080804002500174",
	"130e80808080804006ce4980a0abfef962000000000000060000000000000000000000000014",
	"030e8080808080400000000000000000000000000000000000000000000000000000000001",
	"1d80a8d6b9070a",
	"130e80808080804006ce4980a0abfef96200000000000000000000000000000000000000000001",
	"130e80808080804006ce4980a0abfef96200000000000000000000000000000000000000001401",
	"19020400016d",
}

// The service and the runner may be of different versions, so the layout of a frame never changes.
func TestFrameEncodingsNeverChange(t *testing.T) {
	for i, f := range exampleFrames() {
		if got := hex.EncodeToString(wire.AppendFrame(nil, f)[4:]); i >= len(encodedFrames) || got != encodedFrames[i] {
			t.Errorf("%T is written as %s", f, got)
		}
	}
}

// If the end of a frame is missing, no matter where it is cut off, ParseFrame returns ErrIncompleteFrame.
func TestIncompleteFrameReturnsErrIncompleteFrame(t *testing.T) {
	for _, f := range exampleFrames() {
		raw := wire.AppendFrame(nil, f)
		for n := range len(raw) {
			if _, _, err := wire.ParseFrame(raw[:n]); !errors.Is(err, wire.ErrIncompleteFrame) {
				t.Errorf("%T, %d of %d bytes: got %v, want %v", f, n, len(raw), err, wire.ErrIncompleteFrame)
			}
		}
	}
}

// ParseFrame rejects a frame whose length does not fit its fields, a frame of an unknown type, and a frame larger than
// MaxFrameBytes.
func TestDamagedFramesAreRefused(t *testing.T) {
	addSize := func(body []byte) []byte {
		return append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...)
	}
	checkRefused := func(what string, raw []byte) {
		t.Helper()
		if f, _, err := wire.ParseFrame(raw); err == nil || errors.Is(err, wire.ErrIncompleteFrame) {
			t.Errorf("%s: got %+v, %v, want refused", what, f, err)
		}
	}
	for _, f := range exampleFrames() {
		body := wire.AppendFrame(nil, f)[4:]
		whole := len(body)
		if r, is := f.(*wire.Result); is && r.PeakTasks != 0 {
			whole-- // the frame is also valid without the optional number at its end
		}
		if r, is := f.(*wire.Result); is && r.ReachedMemoryLimit {
			whole-- // the frame is also valid without the optional flag at its end
			if r.PeakTasks == 0 {
				whole-- // PeakTasks is written as 0 only because the flag follows
			}
		}
		if s, is := f.(*wire.StartAttempt); is && s.NoNewPrivileges {
			whole-- // the frame is also valid without the optional flag at its end
		}
		if t, is := f.(*wire.TypeInputReply); is && !t.NoTerminal {
			whole = len("\x19\x02\x04\x00") // the frame is also valid without the optional text at its end
		}
		if p, is := f.(*wire.ExtendLeases); is && p.ExpiryBootMillis != 0 {
			whole--
		}
		for n := 1; n < whole; n++ {
			checkRefused(fmt.Sprintf("%T cut to %d", f, n), addSize(body[:n]))
		}
		checkRefused(fmt.Sprintf("%T with a byte more", f), addSize(append(body, 0)))
	}
	checkRefused("type 0", addSize([]byte{0}))
	checkRefused("type 17", addSize([]byte{17}))
	checkRefused("type 255", addSize([]byte{255}))
	checkRefused("no type", []byte{0, 0, 0, 0, 0})
	checkRefused("2 GiB", []byte{0, 0, 0, 0x80, 1})
	checkRefused("one byte too many", append(binary.LittleEndian.AppendUint32(nil, wire.MaxFrameBytes+1), 1))
	checkRefused("a billion leases", addSize(binary.AppendVarint([]byte{7}, 1<<30)))
	checkRefused("a negative count", addSize(binary.AppendVarint([]byte{7}, -1)))
	checkRefused("a flag that is 2", addSize([]byte{14, 0, 0, 2}))
}

// AppendFrame panics if its argument is not a frame, with a message that names the type of the argument.
func TestAppendFrameRejectsNonFrames(t *testing.T) {
	for _, f := range []wire.Frame{nil, wire.Shutdown{}, &wire.Lease{}, (*wire.Lease)(nil), "text"} {
		func() {
			defer func() {
				want := fmt.Sprintf("wire: %T is not the type of a frame", f)
				if got := recover(); got != want {
					t.Errorf("Append panics with %v, want %q", got, want)
				}
			}()
			wire.AppendFrame(nil, f)
		}()
	}
}

// Whatever bytes ParseFrame gets, it does not panic, and does not report a size larger than its input. If it returns a
// frame, encoding and parsing this frame returns the same frame.
func FuzzParseFrame(f *testing.F) {
	for _, frame := range exampleFrames() {
		raw := wire.AppendFrame(nil, frame)
		f.Add(raw)
		f.Add(append(raw, raw[:len(raw)/2]...))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		frame, n, err := wire.ParseFrame(raw)
		if err != nil {
			return
		}
		if n < 5 || n > len(raw) {
			t.Fatalf("%x: took %d of %d bytes", raw, n, len(raw))
		}
		again, _, err := wire.ParseFrame(wire.AppendFrame(nil, frame))
		if err != nil || fmt.Sprint(again) != fmt.Sprint(frame) {
			t.Fatalf("%x: got %+v and then %+v, %v", raw, frame, again, err)
		}
	})
}
