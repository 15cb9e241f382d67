"""Memory of user stories: past stories, above all those that people corrected, serve generators as examples."""

from pipeline.stories.embedding import compose_embedding_text, generate_embedding, generate_embeddings_batch
from pipeline.stories.examples import (
    format_examples_for_prompt,
    retrieve_similar_examples,
    store_generated_stories,
)
from pipeline.stories.memory import StoryMemory, StoryOptions, use
from pipeline.stories.store import (
    UserStoryEmbedding,
    delete_stories_by_source,
    get_story_count,
    init_vector_extension,
    search_similar_stories,
    store_user_stories_batch,
    store_user_story,
)
from pipeline.stories.story import Story

__all__ = [
    "Story",
    "StoryMemory",
    "StoryOptions",
    "UserStoryEmbedding",
    "compose_embedding_text",
    "delete_stories_by_source",
    "format_examples_for_prompt",
    "generate_embedding",
    "generate_embeddings_batch",
    "get_story_count",
    "init_vector_extension",
    "retrieve_similar_examples",
    "search_similar_stories",
    "store_generated_stories",
    "store_user_stories_batch",
    "store_user_story",
    "use",
]
