//go:build unix

package cli

// keys interprets the escape sequences in a user's input to a job's terminal, like ssh: after
// Enter, ~. detaches, ~? prints help and ~~ sends a tilde.
type keys struct {
	within bool // the last key was not Enter
	tilde  bool // the last key was a tilde after Enter
}

// wish is a request in the user's input.
type wish int

const (
	wishNothing wish = iota
	wishHelp
	wishLeave
)

// take returns the keys for the job up to the first wish. rest holds the keys after the wish.
func (k *keys) take(typed []byte) (data []byte, w wish, rest []byte) {
	for i, key := range typed {
		if k.tilde {
			k.tilde = false
			switch key {
			case '.':
				return data, wishLeave, nil
			case '?':
				return data, wishHelp, typed[i+1:]
			case '~':
			default:
				data = append(data, '~')
			}
		} else if key == '~' && !k.within {
			k.tilde = true
			continue
		}
		k.within = key != '\r' && key != '\n'
		data = append(data, key)
	}
	return data, wishNothing, nil
}
