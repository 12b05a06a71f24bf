package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"reflect"

	"golang.org/x/term"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// editText lets a person change a job's fields in $VISUAL or $EDITOR, and returns
// what they changed as a merge patch; nil if nothing.
func (a *App) editText(ctx context.Context, id string) (json.RawMessage, error) {
	c, err := a.Client()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	job, err := c.Show(ctx, control.Show{ID: control.Name(id)})
	if err != nil {
		return nil, err
	}
	before := job.Spec
	delete(before, "id")
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // it is to be read
	e.SetIndent("", "  ")
	if err := e.Encode(before); err != nil {
		return nil, err
	}
	file, edited, err := a.throughEditor(ctx, text.Bytes())
	if err != nil {
		return nil, err
	}
	after := map[string]any{}
	if err := queue.CheckJSON(edited); err != nil {
		return nil, fmt.Errorf("%w; your text is kept in %s", err, file)
	}
	if err := json.Unmarshal(edited, &after); err != nil {
		return nil, Usage("the text must be one JSON object; it is kept in %s", file)
	}
	os.Remove(file)
	patch := changes(before, after)
	if len(patch) == 0 {
		a.Say("nothing was changed")
		return nil, nil
	}
	return json.Marshal(patch)
}

// throughEditor has a text edited in a file, which the caller removes.
func (a *App) throughEditor(ctx context.Context, text []byte) (file string, edited []byte, err error) {
	f, err := os.CreateTemp("", "queuectl-*.json") // 0600: it may hold secrets
	if err != nil {
		return "", nil, Unwritable("edit: TMPDIR", os.TempDir(), err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", nil, Unwritable("edit: TMPDIR", os.TempDir(), err)
	}
	editor := defaultEditor
	for _, name := range []string{"EDITOR", "VISUAL"} {
		if v := os.Getenv(name); v != "" {
			editor = v
		}
	}
	cmd := editorOn(ctx, editor, f.Name())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.in, a.Out, a.Err
	if err := a.inFront(cmd); err != nil {
		os.Remove(f.Name())
		return "", nil, fmt.Errorf("the editor %s: %w; nothing was changed", editor, err)
	}
	edited, err = os.ReadFile(f.Name())
	return f.Name(), edited, err
}

// inFront runs a program that has the terminal. Ctrl-C is the program's, and ends this one with
// it only; one that ends by it leaves the terminal as it was.
func (a *App) inFront(cmd *exec.Cmd) error {
	told := make(chan os.Signal, 1)
	signal.Notify(told, os.Interrupt)
	defer signal.Stop(told)
	before, none := term.GetState(int(a.in.Fd()))
	err := cmd.Run()
	if err != nil && none == nil {
		term.Restore(int(a.in.Fd()), before) // what it cannot do, nobody can
		if IsTerminal(a.Err) {
			fmt.Fprint(a.Err, showCursor)
		}
	}
	return err
}

// showCursor has a terminal show its cursor.
const showCursor = "\x1b[?25h"

// changes is the merge patch that leads from one object to another.
func changes(before, after map[string]any) map[string]any {
	patch := map[string]any{}
	for name, was := range before {
		is, kept := after[name]
		wasMap, wasObject := was.(map[string]any)
		isMap, isObject := is.(map[string]any)
		switch {
		case !kept:
			patch[name] = nil
		case wasObject && isObject:
			if inner := changes(wasMap, isMap); len(inner) > 0 {
				patch[name] = inner
			}
		case !reflect.DeepEqual(was, is):
			patch[name] = is
		}
	}
	for name, is := range after {
		if _, had := before[name]; !had {
			patch[name] = is
		}
	}
	return patch
}
