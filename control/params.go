package control

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// These are limits for parameter values. A type checks its limits while it parses a value, and its errors name the
// parameter.
const (
	MaxJobIDs             = 10_000 // maximum number of job ids in a list
	MaxWaitOrFollowJobIDs = 1000   // maximum number of ids in a request that waits for jobs or follows their events
	MaxTextListItems      = 64     // maximum number of states, or of kinds of events
	// MaxArgEnvCount is the maximum number of arguments and environment variables in a request, of all its jobs
	// together.
	MaxArgEnvCount       = queue.MaxArgsEnvBytes
	MaxSettingValueBytes = 4 << 10 // maximum length of the value of a setting in bytes
	MaxOutputLines       = 100_000 // maximum number of lines in a request for the last lines of an output
	maxUserNameBytes     = 256     // maximum length of a user name in bytes
	maxGateCursorBytes   = 600     // maximum length of the cursor of a list of gates in bytes
)

// manyJobIDsThreshold is the number of ids at which a request counts as a request about many jobs. A user may have only
// a few requests about many jobs in progress.
const manyJobIDsThreshold = 100

// JobID is the id of a job. In JSON it is text, or an integer that is written in decimal. An invalid id is not an
// error: it is shortened and remains invalid, so it matches no job.
type JobID string

// UnmarshalJSON implements json.Unmarshaler.
func (j *JobID) UnmarshalJSON(raw []byte) error {
	id, err := decodeJobID(raw)
	*j = JobID(id)
	return err
}

func decodeJobID(raw []byte) (string, error) {
	if raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9' {
		if len(raw) <= maxRequestIDBytes && !strings.ContainsAny(string(raw), ".eE") {
			return shortenInvalidID(string(raw)), nil
		}
	} else if raw[0] == '"' {
		var s string
		if err := json.Unmarshal(raw, &s); err == nil {
			return shortenInvalidID(s), nil
		}
	}
	return "", fmt.Errorf("must be a job id: text or an integer")
}

// shortenInvalidID shortens s if it is not a valid id. It returns a valid id unchanged.
func shortenInvalidID(s string) string {
	if queue.ValidID(s) {
		return s
	}
	return queue.ClipForMessage(s)
}

// JobIDs is a list of at most MaxJobIDs ids. In JSON, a list of one id may be written as just the id.
type JobIDs []string

// UnmarshalJSON implements json.Unmarshaler.
func (ids *JobIDs) UnmarshalJSON(raw []byte) (err error) {
	*ids, err = decodeListOrEntry(raw, decodeJobID, MaxJobIDs, " per request")
	return err
}

// decodeListOrEntry reads a list of at most maxEntries entries. In JSON, a list of one entry may be written as just the
// entry. errorSuffix is the end of the error for a list that is too long.
func decodeListOrEntry(listJSON []byte, decodeEntry func([]byte) (string, error), maxEntries int,
	errorSuffix string) ([]string, error) {
	list := []string{}
	add := func(e json.RawMessage) error {
		if len(list) == maxEntries {
			return fmt.Errorf("too many entries; the maximum is %d%s", maxEntries, errorSuffix)
		}
		text, err := decodeEntry(e)
		list = append(list, text)
		return err
	}
	if listJSON[0] != '[' {
		err := add(listJSON)
		return list, err
	}
	err := queue.EachElement(listJSON, add)
	return list, err
}

// TextList is a list of at most MaxTextListItems texts. In JSON, a list of one text may be written as just the
// text.
type TextList []string

// UnmarshalJSON implements json.Unmarshaler.
func (t *TextList) UnmarshalJSON(raw []byte) (err error) {
	*t, err = decodeListOrEntry(raw, func(e []byte) (string, error) {
		if e[0] != '"' {
			return "", fmt.Errorf("must be text or a list of text")
		}
		return queue.DecodeJSONString(e)
	}, MaxTextListItems, "")
	return err
}

// Labels maps at most queue.MaxLabels names of labels to values.
type Labels map[string]string

// UnmarshalJSON implements json.Unmarshaler.
func (l *Labels) UnmarshalJSON(raw []byte) error {
	*l = Labels{}
	return queue.EachMember(raw, func(name string, value json.RawMessage) error {
		s, err := queue.DecodeJSONString(value)
		switch {
		case len(*l) == queue.MaxLabels:
			return fmt.Errorf("too many entries; the maximum is %d", queue.MaxLabels)
		case name == "":
			return fmt.Errorf("a label has no name; write NAME=value")
		case value[0] != '"':
			return fmt.Errorf("%s must be text", queue.ClipForMessage(name))
		case err != nil:
			return fmt.Errorf("%s %w", queue.ClipForMessage(name), err)
		case len(name)+len(s) > queue.MaxLabelBytes:
			return fmt.Errorf("%q is too long (%d bytes with its value); the maximum is %d bytes", queue.ClipForMessage(name),
				len(name)+len(s), queue.MaxLabelBytes)
		}
		(*l)[name] = s
		return nil
	})
}

// SettingValue is the value of a setting. In JSON it is text, a number, true or false.
type SettingValue string

// UnmarshalJSON implements json.Unmarshaler.
func (s *SettingValue) UnmarshalJSON(raw []byte) error {
	if len(raw) > 0 && raw[0] == '"' {
		return json.Unmarshal(raw, (*string)(s))
	}
	if len(raw) > 0 && (raw[0] == '{' || raw[0] == '[') || string(raw) == "null" {
		return fmt.Errorf("must be text, a number, true or false")
	}
	*s = SettingValue(raw)
	return nil
}

// maxTerminalSize is the maximum number of rows, and of columns, of a terminal.
const maxTerminalSize = 1<<16 - 1

// UsesFilters reports whether the selection uses any field other than the ids.
func (s *JobSelection) UsesFilters() bool {
	return s.AllJobs || s.FailedOrDead || s.Batch != "" || s.Queue != "" || len(s.States) > 0 || len(s.WithLabels) > 0 ||
		s.Submitter != "" ||
		s.OlderThan != 0 || s.IDGlob != ""
}

// concernsManyJobs reports whether a request with this selection counts as a request about many jobs.
func (s *JobSelection) concernsManyJobs() bool {
	return s.UsesFilters() || len(s.IDs) >= manyJobIDsThreshold
}

// requestConcernsManyJobs reports whether a request lists or changes many jobs.
func requestConcernsManyJobs(params any) bool {
	switch p := params.(type) {
	case *JobListParams, *OverviewScreenParams, *DependencyTreeParams, *JobClearParams, *SimulateParams, *StatsParams,
		*ScheduleListParams:
		return true
	case *DeadJobRetryParams:
		return p.AllDeadJobs || p.Batch != "" || len(p.IDs) >= manyJobIDsThreshold
	case interface{ concernsManyJobs() bool }: // all parameters that contain a Selection
		return p.concernsManyJobs()
	}
	return false
}

// loggedIDsAndSetting returns what the log shows of a request's parameters: ids of jobs, or the name of a setting.
func loggedIDsAndSetting(params any) (ids []string, setting string) {
	switch p := params.(type) {
	case *EnqueueParams:
		if p.JobSpec.ID != nil {
			ids = []string{*p.JobSpec.ID}
		}
	case interface{ AllIDs() []string }:
		ids = p.AllIDs()
	case *JobOutputParams:
		ids = []string{string(p.ID)}
	case *ConfigSetParams:
		setting = p.SettingName
	case *SettingNameParams:
		setting = p.SettingName
	}
	return ids, setting
}
