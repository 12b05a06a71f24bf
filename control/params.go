package control

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// Limits of what parameters hold. They are refused while they are read, by their names.
const (
	MaxNames   = 10_000           // ids of jobs
	MaxWaits   = 1000             // ids of jobs to wait for, or to be told events of
	MaxTexts   = 64               // states, or kinds of events
	MaxEntries = queue.MaxArgsEnv // arguments and variables of all jobs of a batch's request
	MaxScalar  = 4 << 10          // bytes of a setting
	MaxLines   = 100_000          // of output, from its end
	maxUser    = 256              // bytes of the name of a user
	maxGate    = 600              // bytes of the cursor of a list of gates
)

// manyNames is how many ids make a request one about many jobs.
const manyNames = 100

// Name is the id of a job on the wire: text, or an integer, which is its decimal text. What
// cannot be an id is clipped: it names no job either way.
type Name string

// UnmarshalJSON reads text or an integer.
func (n *Name) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		*n = ""
		return nil
	}
	id, err := readName(raw)
	*n = Name(id)
	return err
}

func readName(raw []byte) (string, error) {
	if raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9' {
		if len(raw) <= maxRequestID && !strings.ContainsAny(string(raw), ".eE") {
			return asID(string(raw)), nil
		}
	} else if raw[0] == '"' {
		var s string
		if err := json.Unmarshal(raw, &s); err == nil {
			return asID(s), nil
		}
	}
	return "", fmt.Errorf("must be a job id: text or an integer")
}

func asID(s string) string {
	if queue.ValidID(s) {
		return s
	}
	return queue.Clip(s)
}

// Names is a list of at most MaxNames ids on the wire; a single one may stand alone.
type Names []string

// UnmarshalJSON reads one id or a list.
func (n *Names) UnmarshalJSON(raw []byte) error {
	*n = nil
	if string(raw) == "null" {
		return nil
	}
	if raw[0] != '[' {
		id, err := readName(raw)
		*n = Names{id}
		return err
	}
	*n = Names{}
	return queue.Elements(raw, func(e json.RawMessage) error {
		if len(*n) == MaxNames {
			return fmt.Errorf("too many entries; the maximum is %d per request", MaxNames)
		}
		id, err := readName(e)
		*n = append(*n, id)
		return err
	})
}

// Texts is a list of at most MaxTexts texts on the wire; a single one may stand alone.
type Texts []string

// UnmarshalJSON reads one text or a list.
func (t *Texts) UnmarshalJSON(raw []byte) error {
	*t = nil
	if string(raw) == "null" {
		return nil
	}
	add := func(e json.RawMessage) error {
		if len(*t) == MaxTexts {
			return fmt.Errorf("too many entries; the maximum is %d", MaxTexts)
		}
		if e[0] != '"' {
			return fmt.Errorf("must be text or a list of text")
		}
		s, err := queue.Text(e)
		*t = append(*t, s)
		return err
	}
	if raw[0] != '[' {
		return add(raw)
	}
	*t = Texts{}
	return queue.Elements(raw, add)
}

// Labels are at most queue.MaxLabels labels on the wire, by name.
type Labels map[string]string

// UnmarshalJSON reads an object of text.
func (l *Labels) UnmarshalJSON(raw []byte) error {
	*l = nil
	if string(raw) == "null" {
		return nil
	}
	*l = Labels{}
	return queue.Members(raw, func(name string, value json.RawMessage) error {
		s, err := queue.Text(value)
		switch {
		case len(*l) == queue.MaxLabels:
			return fmt.Errorf("too many entries; the maximum is %d", queue.MaxLabels)
		case name == "":
			return fmt.Errorf("a label has no name; write NAME=value")
		case value[0] != '"':
			return fmt.Errorf("label %s must be text", queue.Clip(name))
		case err != nil:
			return fmt.Errorf("label %s %w", queue.Clip(name), err)
		case len(name)+len(s) > queue.MaxLabel:
			return fmt.Errorf("label %q is too long; name and value together may have %d bytes", queue.Clip(name), queue.MaxLabel)
		}
		(*l)[name] = s
		return nil
	})
}

// Scalar is a setting's value on the wire: text, a number, true or false.
type Scalar string

// UnmarshalJSON reads the value as its text.
func (s *Scalar) UnmarshalJSON(raw []byte) error {
	if len(raw) > 0 && raw[0] == '"' {
		return json.Unmarshal(raw, (*string)(s))
	}
	if len(raw) > 0 && (raw[0] == '{' || raw[0] == '[') || string(raw) == "null" {
		return fmt.Errorf("must be text, a number, true or false")
	}
	*s = Scalar(raw)
	return nil
}

// maxTerminal is how many rows or columns a terminal may have.
const maxTerminal = 1<<16 - 1

// Chosen reports whether a selection says which jobs, where it does not name them.
func (s *Selection) Chosen() bool {
	return s.All || s.Failed || s.Batch != "" || s.Queue != "" || len(s.State) > 0 || len(s.Label) > 0 || s.User != "" || s.OlderThan != 0 || s.IDGlob != ""
}

// Each many reports whether a request is about many jobs.

func (s *Selection) many() bool  { return s.Chosen() || len(s.IDs) >= manyNames }
func (p *DLQRetry) many() bool   { return p.All || p.Batch != "" || len(p.IDs) >= manyNames }
func (p *List) many() bool       { return true }
func (p *ScreenRows) many() bool { return true }
func (p *Tree) many() bool       { return true }
func (p *Sure) many() bool       { return true }

// Each subject is what the log says that a request is about: jobs, or a setting.

func (p *Enqueue) subject() (ids []string, key string) {
	if p.Spec.ID != nil {
		ids = []string{*p.Spec.ID}
	}
	return ids, ""
}
func (s *Selection) subject() (ids []string, key string) { return s.Names(), "" }
func (p *DLQRetry) subject() (ids []string, key string) {
	return Selection{ID: p.ID, IDs: p.IDs}.Names(), ""
}
func (p *Logs) subject() (ids []string, key string)      { return []string{string(p.ID)}, "" }
func (p *ConfigSet) subject() (ids []string, key string) { return nil, p.Key }
func (p *ConfigKey) subject() (ids []string, key string) { return nil, p.Key }
