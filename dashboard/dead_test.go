package dashboard

import (
	"fmt"
	"testing"

	"github.com/queuectl/queuectl/control"
)

// newDeadJobs returns dead jobs that failed with exit code 1.
func newDeadJobs(jobs ...control.Job) (dead []deadJob) {
	for _, j := range jobs {
		text := "exit code 1"
		j.Error = &text
		dead = append(dead, deadJob{j, deathCauseOf(&j)})
	}
	return dead
}

// Jobs with two different commands form two groups, even if they failed with the same exit code.
func TestDeadJobsAreGroupedByCommandAndError(t *testing.T) {
	groups := groupDeadJobs(newDeadJobs(control.Job{Command: "make test"},
		control.Job{Command: "pg_dump db", Argv: []string{"pg_dump", "db"}}, control.Job{Command: "make test"}))
	if len(groups) != 2 || groups[0].CommandOrProgram() != "make test" || len(groups[0].Jobs) != 2 ||
		groups[1].CommandOrProgram() != "pg_dump db" {
		t.Errorf("got %d groups, the first is %q", len(groups), groups[0].CommandOrProgram())
	}
}

// Many jobs that run the same program on different files form one group. The cause of the group matches all of
// them.
func TestDeadJobsOfOneProgramFormOneGroup(t *testing.T) {
	var jobs []control.Job
	for i := range maxShownDeathGroups + 1 {
		jobs = append(jobs, control.Job{Command: fmt.Sprintf("LANG=C ffmpeg -i %d.mp4", i)})
	}
	dead := newDeadJobs(append(jobs, control.Job{Command: "make"})...)
	groups := groupDeadJobs(dead)
	if len(groups) != 2 || groups[0].CommandOrProgram() != "ffmpeg …" || len(groups[0].Jobs) != maxShownDeathGroups+1 {
		t.Fatalf("got %d groups, the first is %q with %d jobs", len(groups), groups[0].CommandOrProgram(),
			len(groups[0].Jobs))
	}
	for i, j := range dead {
		if groups[0].matches(j.deathCause) != (i <= maxShownDeathGroups) {
			t.Errorf("job %d, %q: the cause %q covers the job: %t", i, j.deathCause.Command, groups[0].CommandOrProgram(),
				groups[0].matches(j.deathCause))
		}
	}
}

// Jobs whose commands the visitor may not see form a separate group. The name of this group contains no
// command.
func TestHiddenCommandsFormASeparateGroup(t *testing.T) {
	dead := newDeadJobs(control.Job{HiddenParts: []string{"command"}}, control.Job{Command: "make"})
	groups := groupDeadJobs(dead)
	if len(groups) != 2 || groups[0].CommandOrProgram() != "(hidden)" || groups[0].matches(dead[1].deathCause) ||
		groups[1].matches(dead[0].deathCause) {
		t.Errorf("got %d groups, the first is %q", len(groups), groups[0].CommandOrProgram())
	}
}
