<?php

namespace Shop;

/** Is handled in batches. */
final class Page
{
    public function __construct(public readonly string $name)
    {
    }
}
