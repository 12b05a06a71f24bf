package access

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// How much of a job a user sees depends on the user's right, and on whether the job belongs to the user.
func TestJobVisibilityFollowsRightAndOwner(t *testing.T) {
	for _, c := range []struct {
		have        control.Right
		own, others Visibility
	}{
		{control.RightNone, VisibleOutline, VisibleOutline}, {control.RightRead, VisibleOutline, VisibleOutline},
		{control.RightSubmit, VisibleAll, VisibleOutline}, {control.RightOperate, VisibleAll, VisibleWithoutEnv},
		{control.RightAdmin, VisibleAll, VisibleAll},
	} {
		if got := [2]Visibility{VisibilityFor(c.have, true), VisibilityFor(c.have, false)}; got != [2]Visibility{c.own,
			c.others} {
			t.Errorf("%s: got %v, want %v %v", c.have, got, c.own, c.others)
		}
	}
}

// A hidden part of a job does not appear in any field.
func TestHiddenJobPartsAppearInNoField(t *testing.T) {
	canary := "c4n4ry"
	j := queue.Job{ID: "x", State: queue.Dead, ExitCode: 127, Reason: queue.ReasonNotFound,
		Error: "cannot start " + canary, MaxAttempts: 1, ExecutionSettings: queue.ExecutionSettings{
			Command: canary, Env: []string{"KEY=v4lue"}, Cwd: "/tmp", Shell: canary, Stdin: canary, StdinFile: "/" + canary,
			Labels: map[string]string{"k": "v"}}}
	detail := func(j queue.Job) control.JobDetail {
		return control.JobDetail{Job: control.NewJobView(&j, control.JobViewContext{RunAsUser: "me"}),
			StdoutTail: canary, StderrTail: canary, Spec: queue.SpecOfJob(&j).GivenFields(),
			History: []control.Attempt{control.NewAttemptView(&queue.Attempt{Number: 1, ExitCode: 127,
				Error: "cannot start " + canary})}}
	}
	argv := j
	argv.Command, argv.Argv = "", []string{canary}
	for _, j := range []queue.Job{j, argv} {
		whole := detail(j)
		HideJobDetailParts(&whole, VisibleAll)
		if !reflect.DeepEqual(whole, detail(j)) {
			t.Errorf("all fields: %+v", whole)
		}
		inside, outline := detail(j), detail(j)
		HideJobDetailParts(&inside, VisibleWithoutEnv)
		text := fmt.Sprintf("%+v", inside)
		if strings.Contains(text, "v4lue") || strings.Count(text, "KEY") != 1 || !strings.Contains(text, canary) ||
			!slices.Equal(inside.HiddenParts, []string{"env"}) {
			t.Errorf("inside: %s", text)
		}
		HideJobDetailParts(&outline, VisibleOutline)
		text = fmt.Sprintf("%+v %v", outline, *outline.History[0].Error)
		if strings.Contains(text+*outline.Error, canary) || strings.Contains(text, "KEY") ||
			!slices.Equal(outline.HiddenParts, []string{"command", "env", "output"}) {
			t.Errorf("the outline: %s, %s", text, *outline.Error)
		}
		if *outline.Error != "exit code 127" || outline.Labels["k"] != "v" || outline.Spec["cwd"] != "/tmp" ||
			outline.ID != "x" {
			t.Errorf("the outline lacks visible fields: %s", text)
		}
	}
}
