<?php

declare(strict_types=1);

namespace Redrive\Messenger;

use Symfony\Component\Config\Definition\Builder\TreeBuilder;
use Symfony\Component\Config\Definition\ConfigurationInterface;

final class RedriveConfiguration implements ConfigurationInterface
{
    public function getConfigTreeBuilder(): TreeBuilder
    {
        $builder = new TreeBuilder('redrive');
        $builder->getRootNode()
            ->children()
                ->scalarNode('serializer')
                    ->info('Service that decodes messages: what your transport has as serializer.')
                    ->cannotBeEmpty()
                    ->defaultValue('messenger.default_serializer')
                ->end()
            ->end();

        return $builder;
    }
}
