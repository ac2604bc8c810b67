package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"redrive.dev/redrive/api/v1alpha1"
)

const (
	// classes of the framework, each in a file of its own with so many methods: what a Symfony or Laravel application with a
	// database and an HTTP client loads before it handles its first message.
	classes = 700
	methods = 12
	// times is how much slower a worker was that started such an application for each message than one that keeps it.
	times = 42
)

// framework compares the exec handler with the process handler, with a PHP program that loads a framework before it handles a message.
func framework(ctx context.Context, b *bench) ([]result, error) {
	if err := need(ctx, "php", "php-cli"); err != nil {
		return nil, err
	}
	root, err := writeFramework(b.folder)
	if err != nil {
		return nil, err
	}
	clients, err := filepath.Abs("docs/examples/clients/php/redrive.php")
	if err != nil {
		return nil, fmt.Errorf("the client: %w", err)
	}
	command := func(script string) []string { return []string{"php", filepath.Join(root, script), clients} }
	c := &contest{
		name: "PHP with a framework: process beside exec, 2 processes",
		bare: side{
			messages: max(20, b.messages/400), run: ours(nil),
			play: play{concurrency: processes, handler: v1alpha1.Handler{Exec: &v1alpha1.ExecHandler{Command: command("exec.php")}}},
		},
		ours: side{
			messages: b.messages / 8, run: ours(nil),
			play: play{concurrency: processes, handler: v1alpha1.Handler{Process: &v1alpha1.ProcessHandler{Command: command("process.php")}}},
		},
	}
	return versus(ctx, b, c, times)
}

// writeFramework writes a framework of PHP: classes, what loads them, and the two programs that use it.
func writeFramework(folder string) (root string, err error) {
	root = filepath.Join(folder, "framework")
	write := func(name, content string) {
		path := filepath.Join(root, name)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)) //nolint:gosec // for PHP to read
	}
	for i := range classes {
		write(fmt.Sprintf("src/Service%d.php", i), class(i))
	}
	write("boot.php", fmt.Sprintf(`<?php

spl_autoload_register(static function (string $class): void {
    require __DIR__ . '/src/' . substr($class, strlen('Framework\\')) . '.php';
});
$container = [];
for ($i = 0; $i < %d; $i++) {
    $class = "Framework\\Service$i";
    $container[$class] = new $class($container);
}
$handler = static fn (string $body) => json_decode($body, true, flags: JSON_THROW_ON_ERROR);
`, classes))
	write("exec.php", `<?php

require __DIR__ . '/boot.php';
$handler(stream_get_contents(STDIN));
`)
	write("process.php", `<?php

require __DIR__ . '/boot.php';
require $argv[1];
Redrive\serve(static fn (Redrive\Message $message) => $handler($message->body));
`)
	return root, err
}

// class is the source of one class.
func class(number int) string {
	var text strings.Builder
	fmt.Fprintf(&text, "<?php\n\nnamespace Framework;\n\n/** One of many services. */\nclass Service%d\n{\n    private array $services;\n\n", number)
	text.WriteString("    public function __construct(array $services)\n    {\n        $this->services = $services;\n    }\n")
	for i := range methods {
		fmt.Fprintf(&text, `
    /**
     * Handles a case of its own.
     *
     * @param array<string, mixed> $options
     */
    public function handle%d(string $name, array $options = []): ?string
    {
        if (!isset($this->services[$name])) {
            throw new \InvalidArgumentException(sprintf('There is no service "%%s".', $name));
        }
        foreach ($options as $option => $value) {
            if (is_string($value) && str_starts_with($value, '@')) {
                $options[$option] = $this->services[substr($value, 1)] ?? null;
            }
        }

        return $options['result'] ?? null;
    }
`, i)
	}
	text.WriteString("}\n")
	return text.String()
}
