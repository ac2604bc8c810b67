// Package terminal shows changing text: a block that is redrawn in place, and columns.
package terminal

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/term"
)

// Control sequences of terminals, of which every one in use knows these.
const (
	clearBelow = "\x1b[J"
	upLines    = "\x1b[%dF"
)

// Screen keeps a block of lines at the bottom of a terminal and lets everything else scroll by above it. It is safe for
// concurrent use.
type Screen struct {
	mu    sync.Mutex
	out   io.Writer
	size  func() (width, height int)
	shown []string
}

// NewScreen returns the Screen of a terminal, nil where out is none.
func NewScreen(out io.Writer) *Screen {
	file, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return nil
	}
	return &Screen{out: out, size: func() (int, int) {
		width, height, err := term.GetSize(int(file.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			return 80, 24 // a terminal that does not know its own size
		}
		return width, height
	}}
}

// Show replaces the block.
func (s *Screen) Show(lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	width, height := s.size()
	block := make([]string, 0, len(lines))
	for _, line := range lines[:min(len(lines), max(1, height-1))] {
		block = append(block, cut(line, width-1))
	}
	var out bytes.Buffer
	s.erase(&out)
	s.draw(&out, block)
	_, _ = s.out.Write(out.Bytes())
}

// Write prints above the block. It takes whole lines.
func (s *Screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out bytes.Buffer
	block := s.shown
	s.erase(&out)
	out.Write(p)
	s.draw(&out, block)
	if _, err := s.out.Write(out.Bytes()); err != nil {
		return 0, fmt.Errorf("write to the terminal: %w", err)
	}
	return len(p), nil
}

func (s *Screen) erase(out *bytes.Buffer) {
	if len(s.shown) > 0 {
		fmt.Fprintf(out, upLines+clearBelow, len(s.shown))
	}
	s.shown = nil
}

func (s *Screen) draw(out *bytes.Buffer, block []string) {
	for _, line := range block {
		out.WriteString(line + "\n")
	}
	s.shown = block
}

// cut keeps a line from wrapping, which would take more of the terminal than is erased again.
func cut(line string, width int) string {
	runes := []rune(line)
	if width < 1 || len(runes) <= width {
		return line
	}
	return string(runes[:width])
}
