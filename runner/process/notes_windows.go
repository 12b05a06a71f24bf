package process

import "time"

// notesEvery is the time between two reads of the notes, which are polled.
const notesEvery = 500 * time.Millisecond

// untilNoteRead returns the time until the next read of the notes. It returns a negative duration if
// none is due.
func (r *run) untilNoteRead() time.Duration {
	if r.c.PrivateDir == nil {
		return -1
	}
	return max(0, time.Until(r.nextNoteRead))
}

// readNotes reads the notes if that is due.
func (r *run) readNotes(now time.Time) {
	if r.c.PrivateDir == nil || now.Before(r.nextNoteRead) {
		return
	}
	if r.nextNoteRead.IsZero() { // this is the first call for this command
		r.nextNoteRead = now.Add(NotesEvery)
		return
	}
	data := r.c.PrivateDir.Drain()
	pending := (len(data) > 0 || r.notesPending) && r.c.Notes.OnNotes(data)
	r.notesPending, r.nextNoteRead = pending, now.Add(notesEvery)
	if pending {
		r.nextNoteRead = now.Add(NotesEvery)
	}
}
