<?php

namespace Shop;

use Symfony\Component\Console\Command\Command;
use Symfony\Component\Console\Input\InputArgument;
use Symfony\Component\Console\Input\InputInterface;
use Symfony\Component\Console\Output\OutputInterface;
use Symfony\Component\Messenger\MessageBusInterface;
use Symfony\Component\Messenger\Stamp\DelayStamp;

/** Publishes as an application does: by its bus. */
final class PublishCommand extends Command
{
    public function __construct(private readonly MessageBusInterface $bus)
    {
        parent::__construct('shop:publish');
    }

    protected function configure(): void
    {
        $this->addArgument('count', InputArgument::REQUIRED);
    }

    protected function execute(InputInterface $input, OutputInterface $output): int
    {
        for ($i = 1; $i <= (int) $input->getArgument('count'); ++$i) {
            foreach (['plain', 'half', 'mixed', 'recoverable', 'hopeless'] as $mode) {
                $this->bus->dispatch(new Order("$mode-$i", $mode));
            }
            $this->bus->dispatch(new Order("skipped-$i", 'plain'));
            $this->bus->dispatch(new Page("page-$i"));
            $this->bus->dispatch(new Order("delayed-$i", 'plain'), [new DelayStamp(500)]);
        }

        return self::SUCCESS;
    }
}
