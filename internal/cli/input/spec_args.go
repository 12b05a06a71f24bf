package input

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/queue"
)

// ParseSpecArgs parses the arguments of a command into s. argCountBeforeDash is the number of arguments before --, or
// -1 without --. If the only argument is a JSON array of jobs, ParseSpecArgs leaves s unchanged and returns the
// elements of the array.
func ParseSpecArgs(in io.Reader, verb string, s *queue.Spec, args []string, argCountBeforeDash int) (
	[]json.RawMessage, error) {
	given := len(s.GivenFields()) > 0
	if s.Stdin != nil && *s.Stdin == "-" {
		text, err := readStdin(in)
		if err != nil {
			return nil, err
		}
		s.Stdin = &text
	}
	switch {
	case argCountBeforeDash == 0 && len(args) > 0:
		s.Argv = args
	case argCountBeforeDash > 0:
		return nil, fault.Usagef("unexpected words before --; write the whole program after --: queuectl %s -- %s", verb,
			queue.CommandText("", args))
	case len(args) > 1:
		return nil, fault.Usagef("%d words given; quote them as one shell command: queuectl %s %s, or run the program "+
			"without a shell: queuectl %[2]s -- %[4]s", len(args), verb, queue.QuoteShellWord(strings.Join(args, " ")),
			queue.CommandText("", args))
	case len(args) == 1 && strings.HasPrefix(strings.TrimSpace(args[0]), "["):
		if err := queue.CheckJSON([]byte(args[0])); err != nil {
			return nil, fault.Usagef(`%v; to run a shell command that begins with "[", use --command`, err)
		}
		if given {
			return nil, fault.Usagef("job flags cannot be combined with a JSON array; put the settings into the " +
				"objects of the array")
		}
		elements := []json.RawMessage{}
		err := json.Unmarshal([]byte(args[0]), &elements)
		return elements, err
	case len(args) == 1 && strings.HasPrefix(strings.TrimSpace(args[0]), "{"):
		return nil, mergeJSONSpec(s, args[0])
	case len(args) == 1 && s.Command != nil:
		return nil, fault.Usagef("--command: cannot be combined with a command given as an argument; use one of them")
	case len(args) == 1:
		s.Command = &args[0]
	}
	return nil, nil
}

// mergeJSONSpec parses a spec from JSON and adds its fields to flagSpec. If flagSpec already has a field, flagSpec
// keeps its own value of this field.
func mergeJSONSpec(flagSpec *queue.Spec, jsonText string) error {
	if err := queue.CheckJSON([]byte(jsonText)); err != nil {
		return fault.Usagef("%v; to run a shell command that begins with {, use --command", err)
	}
	var s queue.Spec
	if err := s.DecodeJSON([]byte(jsonText), nil); err != nil {
		return err
	}
	s.Override(flagSpec)
	*flagSpec = s
	return nil
}

func readStdin(in io.Reader) (string, error) {
	raw, err := io.ReadAll(io.LimitReader(in, queue.MaxStdinBytes+1))
	if err != nil {
		return "", fmt.Errorf("cannot read standard input: %w", err)
	}
	if len(raw) > queue.MaxStdinBytes {
		return "",
			queue.InvalidFieldError("stdin", "standard input is longer than %d bytes; put it in a file and use --stdin-file",
				queue.MaxStdinBytes)
	}
	return string(raw), nil
}
