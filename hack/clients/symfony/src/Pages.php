<?php

namespace Shop;

use Symfony\Component\Messenger\Handler\Acknowledger;
use Symfony\Component\Messenger\Handler\BatchHandlerInterface;
use Symfony\Component\Messenger\Handler\BatchHandlerTrait;

/** Handles pages ten at a time, or as many as there are. */
final class Pages implements BatchHandlerInterface
{
    use BatchHandlerTrait;

    public function __invoke(Page $page, ?Acknowledger $ack = null): mixed
    {
        return $this->handle($page, $ack);
    }

    private function process(array $jobs): void
    {
        foreach ($jobs as [$page, $ack]) {
            Report::that('batch', $page->name, ['size' => \count($jobs)]);
            if (str_ends_with($page->name, '-7') && !is_file($mark = getenv('REPORT') . '.' . $page->name)) {
                touch($mark);
                $ack->nack(new \RuntimeException('the seventh page fails once'));
            } else {
                $ack->ack();
            }
        }
    }
}
