package queue

import "testing"

// A fingerprint is the same in all versions of queuectl. Two jobs have the same fingerprint exactly if their
// user, queue, directory and command are the same.
func TestFingerprintIdentifiesSameCommand(t *testing.T) {
	base := func() Job {
		return Job{UID: 7, Queue: "default", ExecutionSettings: ExecutionSettings{Command: "make all", Cwd: "/src"}}
	}
	j := base()
	j.ID, j.Seq, j.Priority, j.Env = "x", 3, 9, []string{"A=b"}
	same := base()
	if j.CommandFingerprint() != same.CommandFingerprint() {
		t.Error("the ID, the number, the priority or the environment changes the fingerprint")
	}
	if got := same.CommandFingerprint(); got != 5635154117666000785 {
		t.Errorf("the fingerprint %d differs from that of an earlier version", got)
	}
	seen := map[uint64]bool{same.CommandFingerprint(): true}
	for _, change := range []func(*Job){
		func(j *Job) { j.UID = 8 }, func(j *Job) { j.Queue = "defaul" }, func(j *Job) { j.Cwd = "/" },
		func(j *Job) { j.Command = "make" },
		func(j *Job) { j.Command, j.Argv = "", []string{"make", "all"} },
		func(j *Job) { j.Command, j.Argv = "", []string{"makeall"} },
		func(j *Job) { j.Command, j.Argv = "", []string{"make all", ""} },
	} {
		j := base()
		change(&j)
		if seen[j.CommandFingerprint()] {
			t.Errorf("%+v has the same fingerprint as another job", j)
		}
		seen[j.CommandFingerprint()] = true
	}
}
