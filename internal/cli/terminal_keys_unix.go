//go:build unix

package cli

// keyParser finds the escape sequences that a user types into a job's terminal. They are the same as in ssh: after
// Enter, ~. detaches, ~? prints help and ~~ sends a tilde.
type keyParser struct {
	lastKeyNotEnter    bool // the last key was not Enter
	escapeTildePending bool // the last key was a tilde after Enter
}

// keyAction is the action that an escape sequence requests.
type keyAction int

const (
	noKeyAction keyAction = iota
	showHelpAction
	leaveJobAction
)

// parseTypedInput interprets typed input up to the first escape sequence. jobInput contains the keys before this
// sequence, action is the action that the sequence requests, and unparsed contains the keys after the
// sequence.
func (k *keyParser) parseTypedInput(typed []byte) (jobInput []byte, action keyAction, unparsed []byte) {
	for i, key := range typed {
		if k.escapeTildePending {
			k.escapeTildePending = false
			switch key {
			case '.':
				return jobInput, leaveJobAction, nil
			case '?':
				return jobInput, showHelpAction, typed[i+1:]
			case '~':
			default:
				jobInput = append(jobInput, '~')
			}
		} else if key == '~' && !k.lastKeyNotEnter {
			k.escapeTildePending = true
			continue
		}
		k.lastKeyNotEnter = key != '\r' && key != '\n'
		jobInput = append(jobInput, key)
	}
	return jobInput, noKeyAction, nil
}
