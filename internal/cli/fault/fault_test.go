package fault

import (
	"errors"
	"fmt"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// Each kind of error has its exit code, even if another error wraps it. WithExitCode overrides the code of the kind.
func TestExitCodeDependsOnErrorKind(t *testing.T) {
	usage := Usagef("--limit: %d is too small; use 1 or more", 0)
	for _, c := range []struct {
		err  error
		want int
	}{
		{usage, 2}, {fmt.Errorf("serve: %w", usage), 2}, {WithExitCode(usage, 9), 9},
		{fmt.Errorf("cannot start: %w", WithExitCode(errors.New("crash"), 7)), 7},
	} {
		if got := ExitCode(c.err); got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}
	}
}

// The message about a denied request begins with "denied: ", unless it already begins with a subject, such as
// "--user: ".
func TestUserMessageMarksDeniedRequests(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{queue.Errorf(queue.CodeDenied, "only admins may do this; ask one"), "denied: only admins may do this; ask one"},
		{queue.Errorf(queue.CodeDenied, "--user: you may not; ask an admin"), "--user: you may not; ask an admin"},
		{Usagef("queuectl queue: no command given"), "queue: no command given"},
	} {
		if got := UserMessage(c.err); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// An error about a line of a file names the line. errors.Is still finds its cause.
func TestLineErrorNamesLineNumber(t *testing.T) {
	cause := queue.InvalidFieldError("cwd", "must not be empty")
	err := WithLineNumber(cause, 3)
	if want := "line 3: " + cause.Error(); err.Error() != want || !errors.Is(err, queue.ErrInvalid) {
		t.Errorf("got %q, want %q", err, want)
	}
}
