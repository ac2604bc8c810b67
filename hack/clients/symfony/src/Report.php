<?php

namespace Shop;

/** Writes down what happens, for the test to read: a line of JSON each. */
final class Report
{
    /** Attempt of the message that is being handled. */
    public static int $attempt = 0;

    public static function that(string $kind, string $name, array $more = []): void
    {
        $line = json_encode(['kind' => $kind, 'name' => $name, 'attempt' => self::$attempt] + $more, \JSON_THROW_ON_ERROR);
        file_put_contents(getenv('REPORT'), $line . "\n", \FILE_APPEND | \LOCK_EX);
    }
}
