package page

import (
	"bytes"
	"fmt"
	"image/png"
	"os"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/queuectl/queuectl/internal/testrig"
)

// enqueueExampleJobs adds example jobs and schedules to a queue. The jobs are running, waiting, completed and
// dead.
func enqueueExampleJobs(q *testrig.Harness) {
	q.MustRunCLI("queue", "set", "build", "--concurrency", "4", "--weight", "3")
	q.MustRunCLI("queue", "set", "render", "--concurrency", "2")
	q.MustRunCLI("queue", "pause", "render", "--reason", "GPU driver update")
	q.MustRunCLI("enqueue", "--id", "push-web", "-Q", "build", "--max-retries", "0",
		`echo "dial tcp 10.0.4.7:5000: connect: connection refused" >&2; exit 1`)
	q.MustRunCLI("enqueue", "--id", "thumbs-0412", "--max-retries", "0", "ffmpg -i in.mp4")
	for i := range 20 {
		q.MustRunCLI("enqueue", "-q", fmt.Sprintf("sleep 0.0%d", i%10))
	}
	q.MustRunCLI("enqueue", "--id", "train-resnet", "-Q", "gpu", "--label", "team=vision",
		`queuectl progress 40 "epoch 4 of 10"; echo "epoch 4, loss 0.0412"; sleep 600`)
	q.MustRunCLI("enqueue", "--id", "api-image", "-Q", "build", "--label", "team=blue",
		`printf '#1 [internal] load build definition\n#7 \033[36mRUN go mod download\033[0m\n#7 \033[32mDONE 28.1s\033[0m\n'; echo "WARN: the base image is of another platform" >&2; sleep 600`)
	q.MustRunCLI("enqueue", "--id", "report", "-Q", "build", "--after", "train-resnet", "make report")
	q.MustRunCLI("enqueue", "--id", "mail-report", "--after", "report", "sendmail-batch --campaign autumn")
	q.MustRunCLI("enqueue", "--id", "scene-7", "-Q", "render", "blender -b scene.blend -f 7")
	q.MustRunCLI("enqueue", "--id", "mirror", "--in", "3h", "rsync -aH /srv/ backup:/srv/")
	q.MustRunCLI("schedule", "add", "backup-db", "0 3 * * *", "--", "pg_dump", "warehouse")
	q.MustRunCLI("schedule", "add", "cleanup-tmp", "*/15 * * * *", "--", "find", "/srv/tmp", "-mtime", "+2", "-delete")
	q.MustRunCLI("schedule", "run", "cleanup-tmp")
	q.WaitUntil("the two are dead", 20*time.Second, func() bool {
		return len(q.MustRunCLI("dlq", "list", "-q")) > len("push-web")
	})
}

// The test takes pictures of all pages, at two window widths and in both colour schemes. With -update, it
// replaces the picture in docs/dashboard.md.
func TestPagesAreCapturedAsPictures(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "3")
	enqueueExampleJobs(q)
	w := openBrowserWindow(q)
	for _, width := range []int64{1280, 390} {
		for _, scheme := range []string{"light", "dark"} {
			w.runActions(chromedp.EmulateViewport(width, 900),
				emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
			for name, path := range map[string]string{"overview": "/", "jobs": "/jobs?state=done", "job": "/jobs/api-image",
				"waiting": "/jobs/report", "dead": "/dead", "schedules": "/schedules", "workers": "/workers",
				"figures": "/stats?since=1h"} {
				var picture []byte
				w.runActions(chromedp.Navigate(w.pageAddress+path), chromedp.WaitVisible("main h1"))
				if name == "job" {
					w.waitForText("#log", "DONE")
				}
				w.runActions(chromedp.CaptureScreenshot(&picture))
				if image, err := png.Decode(bytes.NewReader(picture)); err != nil || image.Bounds().Dx() != int(width) {
					t.Fatalf("%s at %d: %v", name, width, err)
				}
				if *testrig.UpdateExpectedOutput && name == "overview" && width == 1280 && scheme == "light" {
					if err := os.WriteFile("../../docs/images/overview.png", picture, 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
}
